#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <thread>

#include "runtime/base/mutex.h"

namespace latentd::testing {

// A CUDA stream without a device: a thread that does one thing after the other. What is submitted returns at once, so
// that whoever forgets to wait for it reads what is not there yet.
// Owner: the handle that the runtime's caller has; its end waits for what was submitted. Thread: any.
class EmulatedStream {
 public:
  using Work = std::function<void()>;

  static std::shared_ptr<EmulatedStream> start(int device);
  explicit EmulatedStream(int device) : device_(device), thread_([this] { run(); }) {}
  ~EmulatedStream();

  int device() const { return device_; }
  void submit(Work work);
  bool isIdle() const;
  void synchronize() const;
  // All of this process.
  static void synchronizeAll();

 private:
  void run();

  const int device_;
  mutable Mutex mutex_;
  mutable CondVar changed_;
  std::deque<Work> queue_ GUARDED_BY(mutex_);  // the front is being done
  bool ending_ GUARDED_BY(mutex_) = false;
  std::thread thread_;  // of the rest
};

}  // namespace latentd::testing
