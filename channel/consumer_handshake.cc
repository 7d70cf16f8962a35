#include <poll.h>
#include <unistd.h>

#include <iterator>
#include <stop_token>
#include <string>
#include <utility>

#include "channel/consumer_core.h"
#include "channel/handshake.h"
#include "channel/limits.h"
#include "channel/message.h"

// The part of ConsumerCore that connects to producer ranks.
namespace latentd::channel {

Status ConsumerCore::connect(const std::vector<std::string>& addresses) {
  if (!wake_.valid()) return makeStatus(absl::StatusCode::kResourceExhausted, "no descriptor is free for an eventfd");
  const Clock::TimePoint deadline = context_.clock->now() + spec_.progress_timeout;
  const uint32_t ranks = publishingRanks(spec_);
  std::vector<Source> sources;
  for (uint32_t p = 0; p < ranks; ++p) {
    sources.emplace_back(*context_.loop);
    LATENTD_RETURN_IF_ERROR(
        annotate(greet(sources.back(), Rank(p), addresses[p], deadline), "connecting to " + describe(p)));
  }
  // Only once every rank has agreed: a rank that is bound takes the loss of its consumer for a death.
  v1::Message message = newMessage();
  message.mutable_bound();
  LATENTD_ASSIGN_OR_RETURN(const OutFrame frame, encodeMessage(message));
  for (Source& source : sources)
    LATENTD_RETURN_IF_ERROR(source.greeted->send(frame).status());
  {
    MutexLock lock(mutex_);
    sources_ = std::move(sources);
    for (const Source& source : sources_)
      controls_.push_back(*source.control);
  }
  Status opened;
  context_.loop->runAndWait([&] {
    MutexLock lock(mutex_);
    for (size_t p = 0; p < ranks && opened.ok(); ++p) {
      opened = sources_[p].link.open(std::move(sources_[p].greeted), [weak = weak_from_this(), p](uint32_t events) {
        if (const auto self = weak.lock()) self->onSource(p, events);
      });
    }
  });
  return opened;
}

Status ConsumerCore::greet(Source& source, Rank producer, const std::string& address, Clock::TimePoint deadline) {
  LATENTD_ASSIGN_OR_RETURN(source.greeted, context_.backend->connect(address));
  v1::Message message = newMessage();
  *message.mutable_hello() = makeHello(spec_, producer, rank_);
  LATENTD_ASSIGN_OR_RETURN(const OutFrame hello, encodeMessage(message));
  LATENTD_RETURN_IF_ERROR(source.greeted->send(hello).status());
  Frame frame;
  LATENTD_ASSIGN_OR_RETURN(const v1::Message answer, readOne(*source.greeted, deadline, frame));
  if (answer.has_refused()) {
    const Status reason = readStatus(answer.refused().status());
    return reason.ok() ? absl::InternalError("refused without a reason") : annotate(reason, "refused");
  }
  if (!answer.has_welcome()) return absl::InternalError("the answer to a handshake is none");
  LATENTD_RETURN_IF_ERROR(checkWelcome(answer.welcome(), spec_));
  if (frame.fds_lost) {
    return makeStatus(absl::StatusCode::kResourceExhausted,
                      "no descriptor is free for the control block: raise the open files limit");
  }
  const uint64_t bytes = answer.welcome().control_bytes();
  LATENTD_ASSIGN_OR_RETURN(source.control_memory,
                           context_.backend->importControl(answer.welcome().control(), std::move(frame.fds), bytes));
  LATENTD_ASSIGN_OR_RETURN(source.control, ControlBlock::bind(source.control_memory->memory(), spec_, producer));
  source.last_generation.assign(size_t{spec_.profiles_max} * spec_.slots + kTickets, 0);
  source.known_fills.assign(source.last_generation.size(), 0);
  return absl::OkStatus();
}

StatusOr<v1::Message> ConsumerCore::readOne(Link& link, Clock::TimePoint deadline, Frame& frame) const {
  // The count stays in the eventfd; nobody waits on it before this endpoint is bound, and it will not be.
  const std::stop_callback interrupt(context_.cancel, [this] {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof(one));
  });
  for (;;) {
    if (context_.cancel.stop_requested()) {
      return makeStatus(absl::StatusCode::kCancelled, "the handshake was cancelled");
    }
    LATENTD_ASSIGN_OR_RETURN(const Link::Received received, link.receive(frame));
    if (received == Link::Received::kClosed) {
      return makeStatus(absl::StatusCode::kUnavailable, "it closed the connection during the handshake");
    }
    if (received == Link::Received::kFrame) {
      v1::Message message;
      LATENTD_RETURN_IF_ERROR(parseMessage(frame, message));
      return message;
    }
    const Clock::Duration left = deadline - context_.clock->now();
    if (left <= Clock::Duration::zero()) {
      return makeStatus(
          absl::StatusCode::kDeadlineExceeded,
          "it did not answer the handshake within " + std::to_string(spec_.progress_timeout.count()) + " ms");
    }
    pollfd waited[]{{link.pollFd(), POLLIN, 0}, {wake_.get(), POLLIN, 0}};
    ::poll(waited, std::size(waited), static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(left).count()));
  }
}

}  // namespace latentd::channel
