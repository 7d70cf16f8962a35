#include "tests/support/cuda_emulation/emulated_stream.h"

#include <chrono>
#include <utility>
#include <vector>

namespace latentd::testing {
namespace {

// Streams of this process. Never destroyed: the stream of nobody outlives main().
struct Streams {
  Mutex mutex;
  std::vector<std::weak_ptr<EmulatedStream>> all GUARDED_BY(mutex);
};
Streams& streams() {
  static auto* const streams = new Streams;
  return *streams;
}

// Whoever waits looks again.
std::chrono::steady_clock::time_point aWhile() { return std::chrono::steady_clock::now() + std::chrono::seconds(1); }

}  // namespace

std::shared_ptr<EmulatedStream> EmulatedStream::start(int device) {
  auto stream = std::make_shared<EmulatedStream>(device);
  const MutexLock lock(streams().mutex);
  std::erase_if(streams().all, [](const auto& weak) { return weak.expired(); });
  streams().all.push_back(stream);
  return stream;
}

EmulatedStream::~EmulatedStream() {
  {
    const MutexLock lock(mutex_);
    ending_ = true;
    changed_.notifyAll();
  }
  thread_.join();
}

void EmulatedStream::submit(Work work) {
  const MutexLock lock(mutex_);
  queue_.push_back(std::move(work));
  changed_.notifyAll();
}

bool EmulatedStream::isIdle() const {
  const MutexLock lock(mutex_);
  return queue_.empty();
}

void EmulatedStream::synchronize() const {
  const MutexLock lock(mutex_);
  while (!queue_.empty())
    changed_.waitUntil(mutex_, aWhile());
}

void EmulatedStream::synchronizeAll() {
  std::vector<std::shared_ptr<EmulatedStream>> living;
  {
    const MutexLock lock(streams().mutex);
    for (const auto& weak : streams().all)
      living.push_back(weak.lock());
  }
  for (const auto& stream : living) {
    if (stream != nullptr) stream->synchronize();
  }
}

void EmulatedStream::run() {
  for (;;) {
    Work work;
    {
      const MutexLock lock(mutex_);
      while (!ending_ && queue_.empty())
        changed_.waitUntil(mutex_, aWhile());
      if (queue_.empty()) return;
      work = std::move(queue_.front());
    }
    work();
    work = nullptr;  // and what it holds, before anybody hears that it is done
    const MutexLock lock(mutex_);
    queue_.pop_front();
    changed_.notifyAll();
  }
}

}  // namespace latentd::testing
