#include "runtime/worker/lifeline.h"

#include <signal.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "runtime/base/log.h"

namespace latentd::worker {

StatusOr<std::unique_ptr<Lifeline>> Lifeline::watch(UniqueFd socket, DescriptorInbox& inbox, EventLoop& loop,
                                                    Handlers handlers) {
  sigset_t awaited;
  sigemptyset(&awaited);
  sigaddset(&awaited, SIGTERM);
  sigaddset(&awaited, SIGINT);
  UniqueFd signals(::signalfd(-1, &awaited, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals.valid()) return errnoStatus(errno, "signalfd");
  auto lifeline =
      std::unique_ptr<Lifeline>(new Lifeline(std::move(socket), std::move(signals), inbox, loop, std::move(handlers)));
  LATENTD_RETURN_IF_ERROR(lifeline->start());
  return lifeline;
}

Lifeline::Lifeline(UniqueFd socket, UniqueFd signals, DescriptorInbox& inbox, EventLoop& loop, Handlers handlers)
    : socket_(std::move(socket)),
      signals_(std::move(signals)),
      inbox_(inbox),
      loop_(loop),
      handlers_(std::move(handlers)) {}

Lifeline::~Lifeline() {
  loop_.runAndWait([this] {
    loop_.unwatch(socket_watch_);
    loop_.unwatch(signal_watch_);
  });
}

Status Lifeline::start() {
  Status status;
  loop_.runAndWait([&] {
    auto socket = loop_.watch(socket_.fd(), EPOLLIN, [this](uint32_t) { onSocket(); });
    if (!socket.ok()) {
      status = socket.status();
      return;
    }
    socket_watch_ = *socket;
    auto signals = loop_.watch(signals_.get(), EPOLLIN, [this](uint32_t) { onSignal(); });
    status = signals.status();
    if (signals.ok()) signal_watch_ = *signals;
  });
  return annotate(status, "watching the inherited socket");
}

void Lifeline::onSocket() {
  Frame frame;
  while (true) {
    const auto received = socket_.receive(frame, sizeof(uint64_t));
    if (received.ok() && *received == UnixSocket::Received::kNothing) return;
    if (received.ok() && *received == UnixSocket::Received::kClosed) {
      loop_.unwatch(socket_watch_);
      handlers_.on_supervisor_lost();
      return;
    }
    const bool whole = received.ok() && frame.bytes.size() == sizeof(uint64_t);
    if (!whole || (frame.fds.size() != 1 && !frame.fds_lost)) {
      getLogger("lifeline")->error("a message on the inherited socket is not an id with one descriptor");
      return;
    }
    uint64_t id = 0;
    std::memcpy(&id, frame.bytes.data(), sizeof(id));
    if (frame.fds_lost) {
      inbox_.put(id, absl::ResourceExhaustedError("the worker has no descriptor free for what it was sent: raise its "
                                                  "limit of open files"));
    } else {
      inbox_.put(id, std::move(frame.fds.front()));
    }
  }
}

void Lifeline::onSignal() {
  signalfd_siginfo info{};
  if (::read(signals_.get(), &info, sizeof(info)) != sizeof(info)) return;
  handlers_.on_signal(static_cast<int>(info.ssi_signo));
}

}  // namespace latentd::worker
