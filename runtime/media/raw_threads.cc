#include "runtime/media/raw_threads.h"

#include <pthread.h>

#include <chrono>
#include <utility>

namespace latentd::media {
namespace {

// Every wait has a deadline; this one only makes a thread look again.
constexpr std::chrono::minutes kLook{1};

}  // namespace

RawThreads::~RawThreads() {
  std::vector<std::thread> threads;
  {
    const MutexLock held(mutex_);
    ending_ = true;
    threads.swap(threads_);
    changed_.notifyAll();
  }
  for (std::thread& thread : threads)
    thread.join();
}

void RawThreads::run(std::function<void()> task) {
  {
    const MutexLock held(mutex_);
    tasks_.push_back(std::move(task));
    if (tasks_.size() > idle_) threads_.emplace_back([this] { serve(); });
  }
  changed_.notifyOne();  // not under the lock, which the woken thread takes
}

void RawThreads::serve() {
  // By itself: the name of another thread is a file to be opened.
  ::pthread_setname_np(::pthread_self(), "raw-output");
  while (const std::function<void()> task = next())
    task();
}

std::function<void()> RawThreads::next() {
  const MutexLock held(mutex_);
  while (tasks_.empty()) {
    if (ending_) return nullptr;
    ++idle_;
    changed_.waitUntil(mutex_, std::chrono::steady_clock::now() + kLook);
    --idle_;
  }
  std::function<void()> task = std::move(tasks_.front());
  tasks_.pop_front();
  return task;
}

}  // namespace latentd::media
