#include "runtime/base/event_loop.h"

#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "runtime/base/check.h"

namespace latentd {
namespace {

// Longest sleep of a round without timers: nothing is waited for, it only bounds the wait.
constexpr std::chrono::milliseconds kRoundMax{1000};
// A loop that runs nothing for this long hangs: its callbacks never block for longer than a memory mapping takes.
constexpr std::chrono::minutes kTaskMax{5};
// Events taken in one epoll_wait; the rest come with the next.
constexpr int kEventsMax = 64;
constexpr uint64_t kWakeId = 0;

}  // namespace

EventLoop::EventLoop(const Clock& clock)
    : clock_(clock), epoll_(::epoll_create1(EPOLL_CLOEXEC)), wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  LATENTD_CHECK(epoll_.valid() && wake_.valid(), "no descriptors left for an event loop: raise the open files limit");
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = kWakeId;
  LATENTD_CHECK(::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, wake_.get(), &event) == 0, "cannot watch the wake descriptor");
}

EventLoop::~EventLoop() {
  LATENTD_CHECK(watches_.empty(), "a descriptor is still watched while its loop is destroyed");
}

void EventLoop::run() {
  home_.store(std::this_thread::get_id(), std::memory_order_release);
  while (!stop_.load(std::memory_order_acquire))
    runOnce(kRoundMax);
  finish();
}

void EventLoop::finish() {
  for (bool more = true; more;) {
    runPosted();
    MutexLock lock(mutex_);
    more = !posted_.empty();
    ended_ = !more;
  }
  home_.store(std::thread::id{}, std::memory_order_release);
}

void EventLoop::runOnce(Clock::Duration wait_max) {
  std::array<epoll_event, kEventsMax> events;
  const int count = ::epoll_wait(epoll_.get(), events.data(), kEventsMax, waitMs(wait_max));
  LATENTD_CHECK(count >= 0 || errno == EINTR, "epoll_wait failed");
  for (int i = 0; i < count; ++i) {
    const uint64_t id = events[i].data.u64;
    if (id == kWakeId) {
      uint64_t ignored;
      while (::read(wake_.get(), &ignored, sizeof(ignored)) > 0) {
      }
      continue;
    }
    // A callback of this round may have removed the watch, or destroy itself while it runs.
    const auto found = watches_.find(id);
    if (found == watches_.end()) continue;
    const std::shared_ptr<Ready> ready = found->second;
    (*ready)(events[i].events);
  }
  runPosted();
  runTimers();
}

void EventLoop::stop() {
  stop_.store(true, std::memory_order_release);
  wake();
}

bool EventLoop::post(Task task) {
  bool first = false;
  {
    MutexLock lock(mutex_);
    if (ended_) return false;
    LATENTD_CHECK(posted_.size() < kPostedTasksMax, "an event loop does not run its tasks");
    first = posted_.empty();
    posted_.push_back(std::move(task));
  }
  if (first) wake();
  return true;
}

void EventLoop::runAndWait(const Task& task) {
  if (onHomeThread()) {
    task();
    return;
  }
  // Shared, because the loop may leave its last notify after the waiter returned.
  struct Done {
    Mutex mutex;
    CondVar changed;
    bool done GUARDED_BY(mutex) = false;
  };
  const auto state = std::make_shared<Done>();
  const bool accepted = post([&task, state] {
    task();
    MutexLock lock(state->mutex);
    state->done = true;
    state->changed.notifyAll();
  });
  if (!accepted) {
    task();
    return;
  }
  // An accepted task always runs (run() finishes them), so only a hung loop gets past the bound.
  const auto deadline = std::chrono::steady_clock::now() + kTaskMax;
  MutexLock lock(state->mutex);
  while (!state->done) {
    LATENTD_CHECK(state->changed.waitUntil(state->mutex, deadline), "an event loop does not run its tasks");
  }
}

StatusOr<EventLoop::Watch> EventLoop::watch(int fd, uint32_t events, Ready ready) {
  checkHome();
  const Watch watch{next_id_++, fd};
  epoll_event event{};
  event.events = events;
  event.data.u64 = watch.id;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    return errnoStatus(errno, "watching descriptor " + std::to_string(fd));
  }
  watches_.emplace(watch.id, std::make_shared<Ready>(std::move(ready)));
  return watch;
}

void EventLoop::setEvents(const Watch& watch, uint32_t events) {
  epoll_event event{};
  // Hang-ups cannot be masked; EPOLLONESHOT without events mutes them after the first.
  event.events = events == 0 ? uint32_t{EPOLLONESHOT} : events;
  event.data.u64 = watch.id;
  LATENTD_CHECK(::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, watch.fd, &event) == 0, "the descriptor is not watched");
}

void EventLoop::unwatch(const Watch& watch) {
  checkHome();
  if (watches_.erase(watch.id) == 0) return;
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, watch.fd, nullptr);
}

EventLoop::TimerId EventLoop::addTimer(Clock::TimePoint when, Task task) {
  checkHome();
  const TimerId id{when, next_id_++};
  timers_.emplace(id, std::move(task));
  return id;
}

void EventLoop::cancelTimer(const TimerId& id) {
  checkHome();
  timers_.erase(id);
}

void EventLoop::checkHome() const {
  const std::thread::id home = home_.load(std::memory_order_acquire);
  LATENTD_CHECK(home == std::thread::id{} || home == std::this_thread::get_id(),
                "called off the loop's thread: use post()");
}

void EventLoop::wake() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof(one));  // full means already awake
}

int EventLoop::waitMs(Clock::Duration wait_max) const {
  Clock::Duration wait = wait_max;
  if (!timers_.empty()) wait = std::min(wait, timers_.begin()->first.first - clock_.now());
  if (wait <= Clock::Duration::zero()) return 0;
  // Rounded up: a timer that fires early would spin until its time.
  return static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(wait).count());
}

void EventLoop::runPosted() {
  std::vector<Task> tasks;
  {
    MutexLock lock(mutex_);
    tasks.swap(posted_);
  }
  for (const Task& task : tasks)
    task();
}

void EventLoop::runTimers() {
  const Clock::TimePoint now = clock_.now();
  // A timer that a callback adds waits for the next round, even if its time has come: one that is always late must not
  // keep descriptors and tasks from their turn.
  const uint64_t added_later = next_id_;
  while (!timers_.empty() && timers_.begin()->first.first <= now && timers_.begin()->first.second < added_later) {
    const Task task = std::move(timers_.begin()->second);
    timers_.erase(timers_.begin());
    task();
  }
}

LoopThread::LoopThread(const Clock& clock, const std::string& name) : loop_(clock), thread_([this] { loop_.run(); }) {
  ::pthread_setname_np(thread_.native_handle(), name.substr(0, 15).c_str());
}

LoopThread::~LoopThread() {
  loop_.stop();
  thread_.join();
}

}  // namespace latentd
