#pragma once

#include <atomic>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "channel/backend.h"
#include "channel/buffer_cache.h"
#include "channel/channel.h"
#include "runtime/base/event_loop.h"
#include "runtime/base/fault_point.h"
#include "runtime/base/mutex.h"
#include "tests/support/temp_dir.h"

// Both ends of channels inside the test's process.
namespace latentd::channel::testing {

// The real time, and what the test adds: a time-out passes when it says so, however slow the machine is. Thread: any.
class ShiftedClock final : public Clock {
 public:
  TimePoint now() const override { return real_.now() + Duration(shift_ns_.load()); }
  WallTime wallNow() const override { return real_.wallNow() + Duration(shift_ns_.load()); }
  void advance(Duration duration) { shift_ns_ += duration.count(); }

 private:
  SteadyClock real_;
  std::atomic<int64_t> shift_ns_{0};
};

// Nothing in these tests takes this long unless it hangs.
inline constexpr std::chrono::seconds kPatience{20};

inline Clock::TimePoint soon() { return std::chrono::steady_clock::now() + kPatience; }
inline WaitOptions patient() {
  WaitOptions wait;
  wait.deadline = soon();
  return wait;
}

// Waits until it holds, looking again and again; false if it never did.
bool eventually(const std::function<bool()>& holds);

// A new one each time, or LATENTD_TEST_SEED, to run a failure again.
uint32_t testSeed();

// Descriptors that this process has open.
size_t openDescriptors();

using latentd::testing::TempDir;

// How a backend joins the contract suite.
struct ContractBackend {
  std::string name;
  std::shared_ptr<Backend> backend;
  // A fresh address; the folder is the rig's.
  std::function<std::string(const TempDir&, uint32_t rank)> address;
  bool lends = true;  // slots are read in place
};

// What callbacks told. Thread: any.
class Heard {
 public:
  void add(const Transfer& transfer);
  void fail(const Status& status);
  void retire();
  std::vector<Transfer> transfers() const;
  std::vector<Status> failures() const;
  uint32_t retirements() const;

 private:
  mutable Mutex mutex_;
  std::vector<Transfer> transfers_ GUARDED_BY(mutex_);
  std::vector<Status> failures_ GUARDED_BY(mutex_);
  uint32_t retirements_ GUARDED_BY(mutex_) = 0;
};

ChannelSpec smallSpec();

// Opens every rank of a channel; closes and joins what is still open at the end, and checks that this works.
class Rig {
 public:
  explicit Rig(const ContractBackend& backend, const ChannelSpec& spec = smallSpec());
  ~Rig();

  Producer& producer(uint32_t rank = 0) { return *producers_[rank]; }
  Consumer& consumer(uint32_t rank = 0) { return *consumers_[rank]; }
  Heard& producerHeard() { return producer_heard_; }
  Heard& consumerHeard() { return consumer_heard_; }
  FaultPoints& faults() { return faults_; }
  BufferCache& cache() { return cache_; }
  ShiftedClock& clock() { return clock_; }
  EventLoop& loop() { return loop_.loop(); }
  const ChannelSpec& spec() const { return spec_; }
  const std::vector<std::string>& addresses() const { return addresses_; }
  ChannelContext context();

  // With patience, of the shifted clock.
  StatusOr<ArtifactTree> receive(uint64_t number, uint32_t rank = 0);
  Status publish(uint64_t number, const ArtifactTree& tree, uint32_t rank = 0);

  // Ends without the orderly close, for tests that did it themselves.
  void dropConsumers() { consumers_.clear(); }
  void dropProducers() { producers_.clear(); }
  Status closeAll();

 private:
  const ChannelSpec spec_;
  const ContractBackend backend_;
  ShiftedClock clock_;
  TempDir dir_;
  std::vector<std::string> addresses_;
  FaultPoints faults_;
  BufferCache cache_{64 << 20};
  Heard producer_heard_;
  Heard consumer_heard_;
  LoopThread loop_;
  std::vector<std::unique_ptr<Producer>> producers_;
  std::vector<std::unique_ptr<Consumer>> consumers_;
};

}  // namespace latentd::channel::testing
