#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "runtime/base/child_spawner.h"
#include "runtime/base/event_loop.h"
#include "runtime/base/gate.h"
#include "runtime/base/mutex.h"
#include "runtime/media/output.h"
#include "runtime/media/output_task.h"
#include "runtime/media/raw_threads.h"
#include "runtime/media/spool.h"

namespace latentd::media {

// Outputs into a spool: raw formats by a thread each, containers by a latent-encoder each. `opened` and `done` are
// called on the media thread and must only hand over; `done` with OK only after finish(), with a failure at once.
// Owner: the main; outlives every Output. Thread: any. Failure: an encoder that cannot run here makes open()
// UNAVAILABLE for containers from the moment at which that is known (it is tried once at the start).
class SpoolOutputFactory final : public OutputFactory {
 public:
  struct Options {
    SpoolOptions spool;
    std::string encoder;                          // path of latent-encoder
    std::chrono::milliseconds encode_deadline{};  // from finish() to the complete file
  };

  // The spawner outlives the factory.
  static StatusOr<std::unique_ptr<SpoolOutputFactory>> create(Options options, ChildSpawner& spawner,
                                                              const Clock& clock);
  ~SpoolOutputFactory() override;

  StatusOr<std::unique_ptr<Output>> open(const JobId& job, const v1::JobParameters& parameters, Opened opened,
                                         Done done) override;
  void remove(const JobId& job) override;

  // Outputs whose thread or process still works.
  uint64_t running() const { return gate_.inFlight(); }
  // Of finished results in the spool.
  uint64_t spoolBytes() const { return spool_->bytes(); }

 private:
  class Handle;
  class SharedRing;
  struct Order;
  struct Parts;
  struct Running {
    std::unique_ptr<OutputTask> task;
    Gate::Pass pass;
  };

  SpoolOutputFactory(Options options, std::unique_ptr<Spool> spool, ChildSpawner& spawner, const Clock& clock);
  void probeEncoder();
  Status encoderStatus();
  StatusOr<OutputTask::Backend> startEncoder(const char* format, const VideoSpec& spec, const FrameRing& ring,
                                             const SpoolFile& file);
  StatusOr<Parts> makeParts(const Order& order);
  // On the loop: what open() has ordered.
  void begin(uint64_t id, Order order);
  void withTask(uint64_t id, const std::function<void(OutputTask&)>& action);
  void armExpiry();

  const Options options_;
  const std::unique_ptr<Spool> spool_;
  ChildSpawner& spawner_;
  std::atomic<uint64_t> next_ring_id_{1};  // 0 means no ring on the wire
  Mutex mutex_;
  Status encoder_status_ GUARDED_BY(mutex_);
  Gate gate_;
  // Home thread of the loop only.
  std::unique_ptr<EncoderProcess> probe_;
  std::map<uint64_t, Running> running_;
  std::optional<EventLoop::TimerId> expiry_;
  LoopThread loop_thread_;  // it uses all of the above
  RawThreads raw_threads_;  // last: to post to the loop is what they do last
};

}  // namespace latentd::media
