#pragma once

#include <map>
#include <memory>
#include <stop_token>
#include <string>

#include "channel/channel.h"
#include "proto/worker.pb.h"
#include "runtime/base/event_loop.h"
#include "runtime/base/mutex.h"
#include "runtime/base/strong_id.h"
#include "runtime/worker/channel_table.h"
#include "runtime/worker/event_sink.h"
#include "runtime/worker/worker_device.h"

namespace latentd::worker {

// The channels of one worker: opens and retires them as the supervisor says, on a thread of its own because both wait
// for peers, and answers with events.
// Owner: the worker, destroyed after the executor. Thread: any; none of the calls blocks but closeAll().
// States: open -> closed. Retiring a channel, or closing all, interrupts what waits for its peers to open. Failure: an
// edge that cannot be opened is reported in EdgeReady; a channel that fails later fails the calls on it, and the
// supervisor hears of its cause, the peer's death, on another way.
class Edges final : public ChannelTable {
 public:
  Edges(Rank rank, const WorkerDevice& device, EventSink& events);
  ~Edges() override;

  void open(const internal::v1::OpenProducer& command);
  void open(const internal::v1::OpenConsumer& command);
  void retire(uint32_t channel_id);
  void discard(const internal::v1::DiscardRefs& command);

  StatusOr<std::shared_ptr<channel::Producer>> producer(uint32_t channel_id) override;
  StatusOr<std::shared_ptr<channel::Consumer>> consumer(uint32_t channel_id) override;
  void noteProgress() override;
  void fillFigures(google::protobuf::RepeatedPtrField<internal::v1::EdgeStats>& edges) override;
  // Of the slots that this worker's producers allocated.
  uint64_t poolBytes();
  // Consumers first, then producers.
  void closeAll(Clock::TimePoint deadline);

 private:
  struct End {
    std::string edge;
    std::shared_ptr<channel::Producer> producer;  // one of the two; owners as in ChannelTable
    std::shared_ptr<channel::Consumer> consumer;
    Clock::Duration progress_timeout{};
  };

  Status add(uint32_t channel_id, End end);
  std::map<uint32_t, End> snapshot();
  void reportReady(uint32_t channel_id, const Status& status);
  StatusOr<std::shared_ptr<channel::Producer>> openProducer(const internal::v1::OpenProducer& command);
  StatusOr<std::shared_ptr<channel::Consumer>> openConsumer(const internal::v1::OpenConsumer& command,
                                                            std::stop_token cancel);
  void retireNow(uint32_t channel_id);

  const Rank rank_;
  const WorkerDevice& device_;
  EventSink& events_;
  SteadyClock clock_;
  LoopThread freeing_thread_;        // frees memory that a device may still use; outlives the next
  LoopThread channel_thread_;        // runs the data plane; outlives every end
  channel::ChannelContext context_;  // without a backend: each channel has its own
  Mutex mutex_;
  std::map<uint32_t, End> ends_ GUARDED_BY(mutex_);
  std::map<uint32_t, std::stop_source> opening_ GUARDED_BY(mutex_);  // consumers, by channel
  LoopThread blocking_thread_;  // opens and retires, in order; last: its tasks use all of the above
};

}  // namespace latentd::worker
