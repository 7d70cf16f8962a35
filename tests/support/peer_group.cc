#include "tests/support/peer_group.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <utility>

namespace latentd::testing {
namespace {

// Nothing that a peer does takes this long unless it hangs; sanitizers are slow.
constexpr std::chrono::milliseconds kPatience{120'000};
constexpr size_t kTextMax = 64 << 10;

std::optional<std::string> nextOf(UnixSocket& socket) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  Frame frame;
  for (;;) {
    const auto received = socket.receive(frame, kTextMax);
    if (!received.ok() || *received == UnixSocket::Received::kClosed) return std::nullopt;
    if (*received == UnixSocket::Received::kFrame) return frame.bytes;
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    if (left.count() <= 0) return std::nullopt;
    pollfd waited{socket.fd(), POLLIN, 0};
    ::poll(&waited, 1, static_cast<int>(left.count()));
  }
}

void sendTo(UnixSocket& socket, const std::string& text) {
  const auto sent = socket.send(text);
  if (!sent.ok()) std::fprintf(stderr, "a peer is gone: %s\n", sent.status().ToString().c_str());
}

}  // namespace

size_t PeerGroup::start(const std::string& test_case, const std::string& setup, const std::vector<int>& more_fds) {
  auto pair = UnixSocket::pair();
  if (!pair.ok()) std::abort();
  std::vector<int> fds{pair->second.fd()};
  fds.insert(fds.end(), more_fds.begin(), more_fds.end());
  Child child{std::move(pair->first), std::make_unique<ChildTestCase>(test_case, fds)};
  sendTo(child.socket, setup);
  children_.push_back(std::move(child));
  return children_.size() - 1;
}

void PeerGroup::send(size_t child, const std::string& text) { sendTo(children_[child].socket, text); }

std::optional<std::string> PeerGroup::next(size_t child) { return nextOf(children_[child].socket); }

void PeerGroup::signal(size_t child, int number) { children_[child].process->signal(number); }

void PeerGroup::kill(size_t child) {
  signal(child, SIGKILL);
  children_[child].process->wait(kPatience);
}

std::optional<int> PeerGroup::wait(size_t child) { return children_[child].process->wait(kPatience); }

ParentPipe::ParentPipe() : socket_(UniqueFd(::fcntl(3, F_DUPFD_CLOEXEC, 10))) { ::close(3); }

void ParentPipe::send(const std::string& text) { sendTo(socket_, text); }

std::string ParentPipe::next() {
  auto text = nextOf(socket_);
  if (!text) ::_exit(2);
  return *std::move(text);
}

}  // namespace latentd::testing
