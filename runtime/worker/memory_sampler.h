#pragma once

#include <functional>
#include <thread>

#include "runtime/base/mutex.h"
#include "runtime/worker/device_memory.h"

namespace latentd::worker {

// What a device's memory was a moment ago, for a thread that may not wait: to look takes a lock of torch's allocator,
// which is held while the driver makes a context or finds memory, and that takes seconds where many processes start.
// Owner: the heartbeat. Thread: latest() from one; `look` runs on a thread of the sampler. Failure: none.
class MemorySampler {
 public:
  explicit MemorySampler(std::function<TorchMemory()> look);
  // Waits for a look that is under way.
  ~MemorySampler();

  // The last look's, and asks for another. Nothing before the first one.
  TorchMemory latest();

 private:
  void run();

  const std::function<TorchMemory()> look_;
  Mutex mutex_;
  CondVar changed_;
  TorchMemory found_ GUARDED_BY(mutex_);
  bool wanted_ GUARDED_BY(mutex_) = true;
  bool ended_ GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace latentd::worker
