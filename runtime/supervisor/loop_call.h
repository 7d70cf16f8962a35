#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <utility>

#include "runtime/base/event_loop.h"
#include "runtime/base/mutex.h"

namespace latentd::supervisor {

// Runs `task` on the loop's thread and returns its result; nothing when the loop has ended or does not get to it in
// time. In the latter case the task still runs later, so it must own all that it uses beside what outlives the loop.
// Thread: any.
template <class Task>
auto callOnLoop(EventLoop& loop, std::chrono::nanoseconds timeout, Task task) -> std::optional<decltype(task())> {
  using Result = decltype(task());
  if (loop.onHomeThread()) return task();
  // Shared by the caller, who may give up, and the loop, which may be late.
  struct Answer {
    Mutex mutex;
    CondVar given;
    std::optional<Result> result GUARDED_BY(mutex);
  };
  const auto answer = std::make_shared<Answer>();
  const bool posted = loop.post([answer, task = std::move(task)]() mutable {
    Result result = task();
    const MutexLock held(answer->mutex);
    answer->result = std::move(result);
    answer->given.notifyOne();
  });
  if (!posted) return std::nullopt;
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  const MutexLock held(answer->mutex);
  while (!answer->result && answer->given.waitUntil(answer->mutex, deadline)) {
  }
  return std::move(answer->result);
}

}  // namespace latentd::supervisor
