#include "runtime/media/output_task.h"

#include <memory>
#include <utility>

#include "runtime/base/check.h"

namespace latentd::media {
namespace {

// By value: all of it is gone, and the file has no other writer, when the end is told.
Status emptyRing(OutputTask::RawBackend backend) { return pumpFrames(backend.reader, *backend.writer).status(); }

}  // namespace

OutputTask::OutputTask(Deps deps, std::shared_ptr<FrameRing> ring, SpoolFile file, OutputFactory::Done done)
    : deps_(std::move(deps)), ring_(std::move(ring)), file_(std::move(file)), done_(std::move(done)) {}

void OutputTask::run(Backend backend) {
  if (auto* encoder = std::get_if<std::unique_ptr<EncoderProcess>>(&backend)) return runEncoder(std::move(*encoder));
  runRaw(std::get<RawBackend>(std::move(backend)));
}

void OutputTask::runRaw(RawBackend backend) {
  const auto shared = std::make_shared<RawBackend>(std::move(backend));  // a task can be copied
  deps_.threads.run([this, shared] {
    const Status status = emptyRing(std::move(*shared));
    // The task lives until then, the loop for longer.
    LATENTD_CHECK(deps_.loop.post([this, status] { onBackendEnded(status); }), "the media loop runs");
  });
}

void OutputTask::runEncoder(std::unique_ptr<EncoderProcess> encoder) {
  encoder_ = std::move(encoder);
  const Status watched = encoder_->watch(deps_.loop, [this](const Status& status) { onBackendEnded(status); });
  if (!watched.ok()) onBackendEnded(watched);
}

void OutputTask::finish() {
  if (state_.is(OutputState::kComplete)) return settle(commit());
  if (!state_.is(OutputState::kOpen)) return;
  state_.move(OutputState::kFinishing);
  deadline_ = deps_.loop.addTimer(deps_.loop.clock().now() + deps_.encode_deadline, [this] { onDeadline(); });
}

void OutputTask::onDeadline() {
  deadline_.reset();
  fail(absl::DeadlineExceededError("the output was not complete " + std::to_string(deps_.encode_deadline.count()) +
                                   " ms after the last frame (deadlines.encode); " +
                                   std::to_string(ring_->framesCommitted()) + " frames were handed over"));
}

void OutputTask::fail(const Status& reason) {
  ring_->abort(reason);
  if (encoder_) encoder_->kill();
  settle(reason);
}

void OutputTask::onBackendEnded(const Status& status) {
  if (status.ok() && state_.is(OutputState::kOpen)) {
    state_.move(OutputState::kComplete);
  } else if (status.ok()) {
    if (state_.is(OutputState::kFinishing)) settle(commit());
  } else {
    // What a backend says in the ring is more exact than its exit code; a signal says nothing there.
    const Status told = ring_->aborted();
    const bool is_signal = encoder_ != nullptr && absl::IsUnavailable(status);
    const bool by_writer = ring_->atFault() == RingParty::kWriter;
    ring_->abort(status);
    if (told.ok() || is_signal) {
      settle(status);
    } else {
      settle(by_writer ? markFramesMissing(told) : told);
    }
  }
  encoder_.reset();
  backend_ended_ = true;
  releaseIfOver();
}

StatusOr<OutputResult> OutputTask::commit() {
  OutputResult result;
  result.path = file_->path();
  result.frames = ring_->framesCommitted();
  SpoolFile file = *std::move(file_);
  file_.reset();
  LATENTD_ASSIGN_OR_RETURN(result.bytes, deps_.spool.commit(std::move(file)));
  deps_.on_committed();
  return result;
}

void OutputTask::settle(StatusOr<OutputResult> result) {
  if (state_.is(OutputState::kEnded)) return;
  state_.move(OutputState::kEnded);
  if (deadline_) deps_.loop.cancelTimer(*deadline_);
  file_.reset();
  std::exchange(done_, nullptr)(std::move(result));
  releaseIfOver();
}

void OutputTask::releaseIfOver() {
  if (backend_ended_ && state_.is(OutputState::kEnded)) deps_.on_released();
}

}  // namespace latentd::media
