#pragma once

#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "runtime/base/mutex.h"

namespace latentd::media {

// The threads of raw outputs, one for each that runs. They are kept for later ones: to make and end a thread takes
// longer than to write a small video.
// Owner: SpoolOutputFactory. Thread: any; the destructor when no task runs any more. Failure: none.
class RawThreads {
 public:
  RawThreads() = default;
  RawThreads(const RawThreads&) = delete;
  RawThreads& operator=(const RawThreads&) = delete;
  ~RawThreads();

  // At once, on a thread that runs no other task.
  void run(std::function<void()> task);

 private:
  void serve();
  // Null at the end.
  std::function<void()> next();

  Mutex mutex_;
  CondVar changed_;
  std::deque<std::function<void()>> tasks_ GUARDED_BY(mutex_);  // each has a thread that is about to take it
  size_t idle_ GUARDED_BY(mutex_) = 0;
  bool ending_ GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_ GUARDED_BY(mutex_);  // as many as tasks ever ran at once
};

}  // namespace latentd::media
