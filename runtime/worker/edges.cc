#include "runtime/worker/edges.h"

#include <optional>
#include <utility>
#include <vector>

#include "runtime/base/log.h"
#include "runtime/base/nanoseconds.h"
#include "runtime/worker/proto_convert.h"

namespace latentd::worker {
namespace {

using channel::Consumer;
using channel::Producer;
using internal::v1::WorkerEvent;

double seconds(Clock::Duration duration) { return std::chrono::duration<double>(duration).count(); }

void logFailure(const std::string& edge, const Status& status) {
  // Of a peer's death it is the consequence, which the supervisor tells with its cause.
  const auto level = absl::IsUnavailable(status) ? spdlog::level::info : spdlog::level::warn;
  getLogger("edges")->log(level, "{}: channel failed: {}", edge, status.ToString());
}

}  // namespace

Edges::Edges(Rank rank, const WorkerDevice& device, EventSink& events)
    : rank_(rank),
      device_(device),
      events_(events),
      freeing_thread_(clock_, "freeing"),
      channel_thread_(clock_, "channel"),
      blocking_thread_(clock_, "edges") {
  context_.loop = &channel_thread_.loop();
  context_.freeing = &freeing_thread_.loop();
  context_.clock = &clock_;
}

Edges::~Edges() {
  blocking_thread_.loop().runAndWait([] {});  // what was posted before
  MutexLock lock(mutex_);
  ends_.clear();
}

// ---- opening ------------------------------------------------------------------------------------------------

Status Edges::add(uint32_t channel_id, End end) {
  MutexLock lock(mutex_);
  if (ends_.emplace(channel_id, std::move(end)).second) return absl::OkStatus();
  return absl::AlreadyExistsError("channel " + std::to_string(channel_id) +
                                  " is open in this worker: an edge joins two groups");
}

void Edges::reportReady(uint32_t channel_id, const Status& status) {
  WorkerEvent event;
  event.mutable_edge_ready()->set_channel_id(channel_id);
  *event.mutable_edge_ready()->mutable_status() = toProto(status);
  events_.post(std::move(event));
}

StatusOr<std::shared_ptr<Producer>> Edges::openProducer(const internal::v1::OpenProducer& command) {
  const channel::ChannelSpec spec = fromProto(command.channel());
  channel::ProducerCallbacks callbacks;
  callbacks.on_transfer_done = [this, id = spec.channel_id](const channel::Transfer& transfer) {
    WorkerEvent event;
    fillFigures(*event.mutable_edges());
    internal::v1::TransferDone& done = *event.mutable_transfer();
    done.mutable_artifact()->set_channel_id(id);
    done.mutable_artifact()->set_sequence(transfer.sequence.value);
    done.set_bytes(transfer.bytes);
    done.set_handoff_seconds(seconds(transfer.handoff));
    done.set_slot_wait_seconds(seconds(transfer.slot_wait));
    done.set_pooled(transfer.pooled);
    done.set_acknowledged_ns(toNanoseconds(transfer.acknowledged));
    events_.post(std::move(event));
  };
  callbacks.on_failed = [edge = spec.edge](const Status& status) { logFailure(edge, status); };
  channel::ChannelContext context = context_;
  LATENTD_ASSIGN_OR_RETURN(context.backend, device_.backend(command.channel().transport()));
  return channel::openProducer(spec, rank_, command.socket_path(), context, std::move(callbacks));
}

StatusOr<std::shared_ptr<Consumer>> Edges::openConsumer(const internal::v1::OpenConsumer& command,
                                                        std::stop_token cancel) {
  const channel::ChannelSpec spec = fromProto(command.channel());
  channel::ConsumerCallbacks callbacks;
  callbacks.on_failed = [edge = spec.edge](const Status& status) { logFailure(edge, status); };
  const std::vector<std::string> addresses(command.socket_paths().begin(), command.socket_paths().end());
  channel::ChannelContext context = context_;
  LATENTD_ASSIGN_OR_RETURN(context.backend, device_.backend(command.channel().transport()));
  context.cancel = std::move(cancel);
  return channel::openConsumer(spec, rank_, addresses, device_.device(), context, std::move(callbacks));
}

void Edges::open(const internal::v1::OpenProducer& command) {
  blocking_thread_.loop().post([this, command] {
    auto producer = openProducer(command);
    const internal::v1::ChannelSpec& spec = command.channel();
    Status status = producer.status();
    if (status.ok()) {
      const std::chrono::milliseconds progress_timeout(spec.progress_timeout_ms());
      status = add(spec.channel_id(), {spec.edge(), *producer, nullptr, progress_timeout});
    }
    reportReady(spec.channel_id(), status);
  });
}

void Edges::open(const internal::v1::OpenConsumer& command) {
  std::stop_source opening;
  {
    MutexLock lock(mutex_);
    opening_.emplace(command.channel().channel_id(), opening);
  }
  blocking_thread_.loop().post([this, command, opening] {
    auto consumer = openConsumer(command, opening.get_token());
    const internal::v1::ChannelSpec& spec = command.channel();
    {
      MutexLock lock(mutex_);
      opening_.erase(spec.channel_id());
    }
    Status status = consumer.status();
    if (status.ok()) {
      const std::chrono::milliseconds progress_timeout(spec.progress_timeout_ms());
      status = add(spec.channel_id(), {spec.edge(), nullptr, *consumer, progress_timeout});
    }
    reportReady(spec.channel_id(), status);
  });
}

// ---- use ----------------------------------------------------------------------------------------------------

std::map<uint32_t, Edges::End> Edges::snapshot() {
  MutexLock lock(mutex_);
  return ends_;
}

StatusOr<std::shared_ptr<Producer>> Edges::producer(uint32_t channel_id) {
  MutexLock lock(mutex_);
  const auto end = ends_.find(channel_id);
  if (end != ends_.end() && end->second.producer != nullptr) return end->second.producer;
  return absl::NotFoundError("channel " + std::to_string(channel_id) + " has no open producer here");
}

StatusOr<std::shared_ptr<Consumer>> Edges::consumer(uint32_t channel_id) {
  MutexLock lock(mutex_);
  const auto end = ends_.find(channel_id);
  if (end != ends_.end() && end->second.consumer != nullptr) return end->second.consumer;
  return absl::NotFoundError("channel " + std::to_string(channel_id) + " has no open consumer here");
}

void Edges::noteProgress() {
  // Stores to shared memory: no copy of the table, which a hand-off would wait for.
  MutexLock lock(mutex_);
  for (const auto& [id, end] : ends_) {
    if (end.producer != nullptr) end.producer->noteProgress();
    if (end.consumer != nullptr) end.consumer->noteProgress();
  }
}

void Edges::discard(const internal::v1::DiscardRefs& command) {
  // Goes when the last of its owners, the callbacks of the refs, is gone.
  std::shared_ptr<WorkerEvent> answer;
  if (command.sync()) {
    answer = std::shared_ptr<WorkerEvent>(new WorkerEvent, [this](WorkerEvent* event) {
      events_.post(std::move(*event));
      delete event;
    });
    answer->mutable_refs_discarded()->set_request_id(command.request_id());
  }
  // All on the channel thread. Not where the answer goes: whoever drops a callback may be inside the channel.
  const auto count = [this, answer](const Status&) {
    if (answer == nullptr) return;
    answer->clear_edges();
    fillFigures(*answer->mutable_edges());
  };
  for (const internal::v1::ArtifactRef& ref : command.refs()) {
    const auto end = consumer(ref.channel_id());
    if (!end.ok()) continue;  // retired: everything in it was discarded
    const Status status = (*end)->discard(SequenceNumber(ref.sequence()), command.reason(), count);
    if (!status.ok() && status.code() != absl::StatusCode::kAlreadyExists) {
      getLogger("edges")->debug("discarding {} of channel {}: {}", ref.sequence(), ref.channel_id(), status.ToString());
    }
  }
}

void Edges::fillFigures(google::protobuf::RepeatedPtrField<internal::v1::EdgeStats>& edges) {
  for (const auto& [id, end] : snapshot()) {
    internal::v1::EdgeStats& stats = *edges.Add();
    stats.set_channel_id(id);
    if (end.producer != nullptr) {
      const channel::ProducerStats counted = end.producer->stats();
      stats.set_slots_in_use(counted.slots_in_use);
      stats.set_stale_dropped(counted.stale_dropped);
    } else {
      const channel::ConsumerStats counted = end.consumer->stats();
      stats.set_bytes_read(counted.bytes_read);
      stats.set_read_ahead(counted.read_ahead);
      stats.set_reread(counted.reread);
      stats.set_stale_dropped(counted.stale_dropped);
      for (const auto& [reason, count] : counted.discarded)
        (*stats.mutable_discarded())[reason] = count;
    }
  }
}

uint64_t Edges::poolBytes() {
  uint64_t bytes = 0;
  for (const auto& [id, end] : snapshot()) {
    if (end.producer != nullptr) bytes += end.producer->stats().pool_bytes;
  }
  return bytes;
}

// ---- retiring -----------------------------------------------------------------------------------------------

void Edges::retireNow(uint32_t channel_id) {
  End end;
  {
    MutexLock lock(mutex_);
    const auto found = ends_.find(channel_id);
    if (found != ends_.end()) {
      end = std::move(found->second);
      ends_.erase(found);
    }
  }
  const Clock::TimePoint deadline = clock_.now() + end.progress_timeout;
  Status status;
  if (end.consumer != nullptr) {
    end.consumer->close();
    status = end.consumer->join(deadline);
  } else if (end.producer != nullptr) {
    end.producer->close();
    status = end.producer->join(deadline);
  }
  // Our side has let go; a peer that did not is the supervisor's to see.
  if (!status.ok()) getLogger("edges")->warn("{}: retiring: {}", end.edge, status.ToString());
  WorkerEvent event;
  event.mutable_edge_retired()->set_channel_id(channel_id);
  events_.post(std::move(event));
}

void Edges::retire(uint32_t channel_id) {
  std::optional<std::stop_source> opening;
  {
    MutexLock lock(mutex_);
    const auto found = opening_.find(channel_id);
    if (found != opening_.end()) opening = found->second;
  }
  // Outside the lock: it wakes the thread that opens.
  if (opening) opening->request_stop();
  blocking_thread_.loop().post([this, channel_id] { retireNow(channel_id); });
}

void Edges::closeAll(Clock::TimePoint deadline) {
  std::map<uint32_t, std::stop_source> opening;
  {
    MutexLock lock(mutex_);
    opening = opening_;
  }
  for (auto& [id, source] : opening)
    source.request_stop();
  blocking_thread_.loop().runAndWait([&] {
    const std::map<uint32_t, End> ends = snapshot();
    for (const auto& [id, end] : ends) {
      if (end.consumer != nullptr) end.consumer->close();
    }
    for (const auto& [id, end] : ends) {
      if (end.producer != nullptr) end.producer->close();
    }
    for (const auto& [id, end] : ends) {
      const Status status = end.consumer != nullptr ? end.consumer->join(deadline) : end.producer->join(deadline);
      if (!status.ok()) getLogger("edges")->warn("{}: closing: {}", end.edge, status.ToString());
    }
  });
  MutexLock lock(mutex_);
  ends_.clear();
}

}  // namespace latentd::worker
