#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <variant>

#include "runtime/base/event_loop.h"
#include "runtime/base/gate.h"
#include "runtime/base/state_machine.h"
#include "runtime/media/encoder_process.h"
#include "runtime/media/frame_ring.h"
#include "runtime/media/frame_writer.h"
#include "runtime/media/output.h"
#include "runtime/media/raw_threads.h"
#include "runtime/media/raw_writer.h"
#include "runtime/media/spool.h"

namespace latentd::media {

enum class OutputState {
  kOpen,       // frames may still come
  kFinishing,  // the job has emitted its last frame; the file is not complete
  kComplete,   // the file is complete; the supervisor does not know that the job emitted its last frame
  kEnded,      // `done` was called
};
inline constexpr TransitionTable<OutputState, 6> kOutputTransitions{{
    {OutputState::kOpen, OutputState::kFinishing, "finish()"},
    {OutputState::kOpen, OutputState::kComplete, "the backend emptied a finished ring"},
    {OutputState::kOpen, OutputState::kEnded, "failure or abort"},
    {OutputState::kFinishing, OutputState::kEnded, "the backend ended, or the deadline passed"},
    {OutputState::kComplete, OutputState::kEnded, "finish(), failure or abort"},
    {OutputState::kEnded, OutputState::kEnded, "what comes late changes nothing"},
}};
static_assert(isWellFormed(kOutputTransitions));

// One job's output while it runs: the ring, the file, and the backend that empties the one into the other, which is
// a thread of ours (raw formats) or a latent-encoder. `done` is called on the loop, once, with the first failure or
// the result.
// Owner: the factory's table, until its backend has ended and `done` was called. Thread: the media loop's.
// Failure: ends this output only.
class OutputTask {
 public:
  struct Deps {
    EventLoop& loop;
    RawThreads& threads;
    Spool& spool;
    std::chrono::milliseconds encode_deadline;
    std::function<void()> on_committed;  // a new result is in the spool
    std::function<void()> on_released;   // nothing of it runs any more; destroy it, but not from inside
  };

  struct RawBackend {
    FrameRingReader reader;
    std::unique_ptr<FrameWriter> writer;
  };
  using Backend = std::variant<RawBackend, std::unique_ptr<EncoderProcess>>;

  OutputTask(Deps deps, std::shared_ptr<FrameRing> ring, SpoolFile file, OutputFactory::Done done);
  OutputTask(const OutputTask&) = delete;
  OutputTask& operator=(const OutputTask&) = delete;

  // Once.
  void run(Backend backend);
  void finish();
  void fail(const Status& reason);

 private:
  void runRaw(RawBackend backend);
  void runEncoder(std::unique_ptr<EncoderProcess> encoder);
  void onBackendEnded(const Status& status);
  void onDeadline();
  void settle(StatusOr<OutputResult> result);
  StatusOr<OutputResult> commit();
  void releaseIfOver();

  const Deps deps_;
  const std::shared_ptr<FrameRing> ring_;  // with the Output that the supervisor holds
  std::optional<SpoolFile> file_;          // until settled
  OutputFactory::Done done_;
  StateMachine<kOutputTransitions, OutputState> state_{OutputState::kOpen};
  bool backend_ended_ = false;
  std::optional<EventLoop::TimerId> deadline_;
  std::unique_ptr<EncoderProcess> encoder_;
};

}  // namespace latentd::media
