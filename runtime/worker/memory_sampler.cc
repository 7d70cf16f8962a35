#include "runtime/worker/memory_sampler.h"

#include <chrono>
#include <utility>

namespace latentd::worker {
namespace {

// A wait needs an end; nothing is due then.
constexpr std::chrono::minutes kIdle{1};

}  // namespace

MemorySampler::MemorySampler(std::function<TorchMemory()> look) : look_(std::move(look)), thread_([this] { run(); }) {}

MemorySampler::~MemorySampler() {
  {
    MutexLock lock(mutex_);
    ended_ = true;
    changed_.notifyAll();
  }
  thread_.join();
}

TorchMemory MemorySampler::latest() {
  MutexLock lock(mutex_);
  wanted_ = true;
  changed_.notifyAll();
  return found_;
}

void MemorySampler::run() {
  for (;;) {
    {
      MutexLock lock(mutex_);
      while (!wanted_ && !ended_)
        changed_.waitUntil(mutex_, std::chrono::steady_clock::now() + kIdle);
      if (ended_) return;
      wanted_ = false;
    }
    const TorchMemory found = look_();
    MutexLock lock(mutex_);
    found_ = found;
  }
}

}  // namespace latentd::worker
