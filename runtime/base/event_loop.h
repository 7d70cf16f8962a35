#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/mutex.h"
#include "runtime/base/status.h"
#include "runtime/base/unique_fd.h"

namespace latentd {

// An epoll loop: descriptors, timers and posted tasks of one home thread, the one that calls run().
// Owner: whoever runs it; what is registered must be unregistered before it dies.
// Thread: post(), runAndWait(), setEvents(), stop() from any; the rest on the home thread, or on any one thread before
// run() and after it returned. Callbacks run on the home thread, one at a time, never under a lock of the loop.
// States: idle -> running -> ended (sticky).
// Failure: construction aborts if the kernel gives no epoll instance; watch() returns a Status.
class EventLoop {
 public:
  using Task = std::function<void()>;
  using Ready = std::function<void(uint32_t events)>;  // EPOLLIN, EPOLLOUT, EPOLLHUP, EPOLLERR

  struct Watch {
    uint64_t id = 0;  // 0: none
    int fd = -1;
  };
  using TimerId = std::pair<Clock::TimePoint, uint64_t>;

  // Tasks that may wait at once; more means that the loop hangs, and aborts.
  static constexpr size_t kPostedTasksMax = 1 << 16;

  explicit EventLoop(const Clock& clock);
  ~EventLoop();
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;

  // Dispatches until stop(); tasks that were accepted by then have run when it returns.
  void run();
  // One round: waits at most `wait_max` for something to be ready, dispatches it. For tests that drive the loop.
  void runOnce(Clock::Duration wait_max);
  void stop();

  // False when the loop has ended; the task is then dropped, not run.
  bool post(Task task);
  // Runs the task on the home thread and returns when it is done; inline when called there, or when the loop has ended.
  void runAndWait(const Task& task);

  // Level-triggered. The descriptor stays the caller's and must be unwatched before it is closed.
  StatusOr<Watch> watch(int fd, uint32_t events, Ready ready);
  // Changes what a watch waits for; 0 mutes it (hang-ups included). The watch must exist.
  void setEvents(const Watch& watch, uint32_t events);
  // No callback of this watch runs after it returns. Forgets ids it does not know.
  void unwatch(const Watch& watch);

  TimerId addTimer(Clock::TimePoint when, Task task);
  void cancelTimer(const TimerId& id);

  const Clock& clock() const { return clock_; }
  bool onHomeThread() const { return home_.load(std::memory_order_acquire) == std::this_thread::get_id(); }

 private:
  void checkHome() const;
  void wake();
  int waitMs(Clock::Duration wait_max) const;
  void runPosted();
  void runTimers();
  void finish();

  const Clock& clock_;
  const UniqueFd epoll_;
  const UniqueFd wake_;
  std::atomic<std::thread::id> home_{};
  std::atomic<bool> stop_{false};

  Mutex mutex_;
  std::vector<Task> posted_ GUARDED_BY(mutex_);
  bool ended_ GUARDED_BY(mutex_) = false;

  // Home thread only.
  std::unordered_map<uint64_t, std::shared_ptr<Ready>> watches_;  // shared with the dispatch in progress
  uint64_t next_id_ = 1;
  std::map<TimerId, Task> timers_;
};

// A loop with its thread. Owner: anyone; destroy what is registered in the loop first. Thread: construction and
// destruction on one thread, not the loop's.
class LoopThread {
 public:
  // `name` is the thread's, cut to the kernel's 15 characters.
  LoopThread(const Clock& clock, const std::string& name);
  ~LoopThread();
  EventLoop& loop() { return loop_; }

 private:
  EventLoop loop_;
  std::thread thread_;  // last: it uses loop_
};

}  // namespace latentd
