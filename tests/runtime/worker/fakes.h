#pragma once

#include <ATen/ops/full.h>

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "channel/channel.h"
#include "runtime/base/mutex.h"
#include "runtime/worker/channel_table.h"
#include "runtime/worker/event_sink.h"
#include "stages/stage.h"
#include "tests/support/catch.h"

// Stand-ins for what surrounds the executor: channels whose every wait the test controls, a sink that remembers, and a
// stage whose method is a lambda.
namespace latentd::worker {

// Of what tensorDict() makes.
constexpr uint64_t kTensorBytes = 6 * sizeof(float);

inline Clock::TimePoint soon() { return std::chrono::steady_clock::now() + std::chrono::seconds(60); }

// ---- channels -----------------------------------------------------------------------------------------------

// A gate that a call waits at until the test opens it or the call is cancelled.
class Barrier {
 public:
  void open() {
    MutexLock lock(mutex_);
    open_ = true;
    changed_.notifyAll();
  }
  // True once a call waits here; false at the deadline.
  bool waitUntilReached() {
    MutexLock lock(mutex_);
    while (waiting_ == 0) {
      if (!changed_.waitUntil(mutex_, soon())) return false;
    }
    return true;
  }
  Status pass(const std::stop_token& cancel) {
    std::stop_callback wake(cancel, [this] {
      MutexLock lock(mutex_);
      changed_.notifyAll();
    });
    MutexLock lock(mutex_);
    ++waiting_;
    changed_.notifyAll();
    while (!open_ && !cancel.stop_requested()) {
      if (!changed_.waitUntil(mutex_, soon())) return absl::DeadlineExceededError("the test forgot this call");
    }
    --waiting_;
    return cancel.stop_requested() ? Status(absl::CancelledError("wait was cancelled")) : absl::OkStatus();
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  int waiting_ = 0;
  bool open_ = false;
};

class FakeProducer final : public channel::Producer {
 public:
  // The test may set these before commands run.
  std::shared_ptr<Barrier> barrier;  // null: a slot is always free
  std::function<Status(uint64_t)> on_publish = [](uint64_t) { return absl::OkStatus(); };

  Status publish(SequenceNumber sequence, const channel::ArtifactTree& tree,
                 const channel::WaitOptions& wait) override {
    if (barrier != nullptr) LATENTD_RETURN_IF_ERROR(barrier->pass(wait.cancel));
    LATENTD_RETURN_IF_ERROR(on_publish(sequence.value));
    MutexLock lock(mutex_);
    published_[sequence.value] = tree;
    return end(sequence.value, absl::OkStatus());
  }
  Status abort(SequenceNumber sequence, const Status& reason) override {
    MutexLock lock(mutex_);
    return end(sequence.value, reason);
  }
  void announce() override {
    MutexLock lock(mutex_);
    ++announced_;
  }
  void noteProgress() override {}
  bool bound() const override { return true; }
  channel::ProducerStats stats() const override { return {}; }
  void close() override {}
  Status join(Clock::TimePoint) override { return absl::OkStatus(); }

  // How the number ended: OK for data; nothing if it did not.
  std::optional<Status> ended(uint64_t sequence) {
    MutexLock lock(mutex_);
    const auto found = ended_.find(sequence);
    return found == ended_.end() ? std::nullopt : std::optional(found->second);
  }
  channel::ArtifactTree published(uint64_t sequence) {
    MutexLock lock(mutex_);
    return published_[sequence];
  }
  int announced() {
    MutexLock lock(mutex_);
    return announced_;
  }

 private:
  Status end(uint64_t sequence, const Status& status) REQUIRES(mutex_) {
    if (!ended_.emplace(sequence, status).second) return absl::AlreadyExistsError("ended before");
    return absl::OkStatus();
  }

  Mutex mutex_;
  std::map<uint64_t, Status> ended_ GUARDED_BY(mutex_);
  std::map<uint64_t, channel::ArtifactTree> published_ GUARDED_BY(mutex_);
  int announced_ GUARDED_BY(mutex_) = 0;
};

class FakeConsumer final : public channel::Consumer {
 public:
  std::shared_ptr<Barrier> barrier;  // null: data is always there
  std::function<StatusOr<channel::ArtifactTree>(uint64_t)> on_receive;

  StatusOr<channel::ArtifactTree> receive(SequenceNumber sequence, channel::Allocator&,
                                          const channel::WaitOptions& wait) override {
    if (barrier != nullptr) LATENTD_RETURN_IF_ERROR(barrier->pass(wait.cancel));
    {
      MutexLock lock(mutex_);
      ended_[sequence.value] = "received";
    }
    return on_receive(sequence.value);
  }
  StatusOr<channel::HeldArtifact> take(SequenceNumber sequence, channel::Allocator& allocator,
                                       const channel::WaitOptions& wait) override {
    LATENTD_ASSIGN_OR_RETURN(channel::ArtifactTree tree, receive(sequence, allocator, wait));
    return channel::HeldArtifact(std::move(tree), std::make_unique<Hold>(*this));
  }
  StatusOr<channel::HeldArtifact> borrow(SequenceNumber, const channel::WaitOptions&) override {
    return absl::UnimplementedError("the executor copies");
  }
  Status discard(SequenceNumber sequence, std::string_view reason, std::function<void(const Status&)> done) override {
    MutexLock lock(mutex_);
    if (!ended_.emplace(sequence.value, std::string(reason)).second) return absl::AlreadyExistsError("ended before");
    if (done) done(absl::OkStatus());
    return absl::OkStatus();
  }
  Status discardAndWait(SequenceNumber sequence, std::string_view reason, const channel::WaitOptions&) override {
    return discard(sequence, reason, nullptr);
  }
  void noteProgress() override {}
  // As if every artifact were one tensorDict().
  channel::ConsumerStats stats() const override {
    MutexLock lock(mutex_);
    channel::ConsumerStats stats;
    for (const auto& [sequence, how] : ended_) {
      if (how == "received") {
        stats.bytes_read += kTensorBytes;
      } else if (!how.empty()) {
        ++stats.discarded[how];
      }
    }
    return stats;
  }
  void close() override {}
  Status join(Clock::TimePoint) override { return absl::OkStatus(); }

  // Of those that were taken.
  int acknowledged() {
    MutexLock lock(mutex_);
    return acknowledged_;
  }
  // "received", the discard's reason, or "" if the number is still open.
  std::string ended(uint64_t sequence) {
    MutexLock lock(mutex_);
    return ended_[sequence];
  }

 private:
  class Hold final : public channel::HeldArtifact::Hold {
   public:
    explicit Hold(FakeConsumer& consumer) : consumer_(consumer) {}
    ~Hold() override {
      MutexLock lock(consumer_.mutex_);
      ++consumer_.acknowledged_;
    }

   private:
    FakeConsumer& consumer_;
  };

  mutable Mutex mutex_;
  std::map<uint64_t, std::string> ended_ GUARDED_BY(mutex_);
  int acknowledged_ GUARDED_BY(mutex_) = 0;
};

class FakeTable final : public ChannelTable {
 public:
  std::map<uint32_t, std::shared_ptr<FakeProducer>> producers;
  std::map<uint32_t, std::shared_ptr<FakeConsumer>> consumers;

  StatusOr<std::shared_ptr<channel::Producer>> producer(uint32_t id) override {
    const auto found = producers.find(id);
    if (found == producers.end()) return absl::NotFoundError("no producer");
    return std::shared_ptr<channel::Producer>(found->second);
  }
  StatusOr<std::shared_ptr<channel::Consumer>> consumer(uint32_t id) override {
    const auto found = consumers.find(id);
    if (found == consumers.end()) return absl::NotFoundError("no consumer");
    return std::shared_ptr<channel::Consumer>(found->second);
  }
  void noteProgress() override {}
  // Of the consumers.
  void fillFigures(google::protobuf::RepeatedPtrField<internal::v1::EdgeStats>& edges) override {
    for (const auto& [id, consumer] : consumers) {
      internal::v1::EdgeStats& stats = *edges.Add();
      const channel::ConsumerStats counted = consumer->stats();
      stats.set_channel_id(id);
      stats.set_bytes_read(counted.bytes_read);
      stats.mutable_discarded()->insert(counted.discarded.begin(), counted.discarded.end());
    }
  }
};

// ---- events -------------------------------------------------------------------------------------------------

class RecordingSink final : public EventSink {
 public:
  using Event = internal::v1::WorkerEvent;

  void post(Event event) override {
    MutexLock lock(mutex_);
    events_.push_back(std::move(event));
    changed_.notifyAll();
  }
  // The n-th event (from 0) for which `matches` holds; fails the test at the deadline.
  Event wait(const std::function<bool(const Event&)>& matches, size_t n = 0) {
    MutexLock lock(mutex_);
    while (true) {
      size_t seen = 0;
      for (const Event& event : events_) {
        if (matches(event) && seen++ == n) return event;
      }
      if (!changed_.waitUntil(mutex_, soon())) break;
    }
    FAIL("an event did not come");
    return {};
  }
  // The end of a job's command.
  Event end(const std::string& job_id) {
    return wait([&](const Event& event) {
      return (event.has_done() && event.done().job_id() == job_id) ||
             (event.has_failed() && event.failed().job_id() == job_id);
    });
  }
  std::vector<Event> all() {
    MutexLock lock(mutex_);
    return events_;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::vector<Event> events_ GUARDED_BY(mutex_);
};

// ---- stage --------------------------------------------------------------------------------------------------

class LambdaStage final : public stages::Stage {
 public:
  using Run = std::function<StatusOr<stages::TensorTree>(const stages::TensorTree&, stages::RunContext&)>;

  explicit LambdaStage(Run run) : run_(std::move(run)) {}
  Status load(const stages::LoadContext&) override { return absl::OkStatus(); }
  Status warmUp() override { return absl::OkStatus(); }
  std::vector<stages::MethodSpec> methods() const override {
    return {{.name = "work", .inputs = {"x"}, .outputs = {"y"}},
            {.name = "make", .outputs = {"y"}},
            {.name = "show", .emits_frames = true}};
  }
  stages::ModelLimits limits() const override { return {}; }
  uint64_t weightBytes() const override { return 0; }
  StatusOr<stages::TensorTree> run(const std::string&, const stages::SamplingParameters&,
                                   const stages::TensorTree& inputs, stages::RunContext& context) override {
    return run_(inputs, context);
  }

 private:
  Run run_;
};

inline stages::TensorTree dictOf(const std::string& key, stages::TensorTree value) {
  stages::TensorTree::Dict dict;
  dict.entries.emplace_back(key, std::move(value));
  return stages::TensorTree(std::move(dict));
}

inline stages::TensorTree tensorDict(const std::string& key, double value) {
  return dictOf(key, stages::TensorTree(at::full({2, 3}, value)));
}

}  // namespace latentd::worker
