#include "runtime/supervisor/health_monitor.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace latentd::supervisor {
namespace {

// A loaded machine runs a timer some tens of milliseconds late. One that comes later than this was held up with its
// process: what workers said meanwhile lies unread.
constexpr std::chrono::milliseconds kTimerDelayMax{100};

double secondsOf(std::chrono::milliseconds duration) { return std::chrono::duration<double>(duration).count(); }

}  // namespace

void HealthMonitor::expect(WorkerId worker, std::string what, std::chrono::milliseconds limit) {
  Entry& entry = entries_[worker];
  entry.phase = std::move(what);
  entry.detail.clear();
  entry.limit = limit;
  entry.phase_deadline = clock_.now() + limit;
  if (entry.silence_deadline) listen(entry);
}

void HealthMonitor::settle(WorkerId worker) {
  Entry& entry = entries_[worker];
  entry.phase_deadline.reset();
  if (entry.silence_deadline) listen(entry);
}

void HealthMonitor::listen(Entry& entry) const {
  entry.silence_limit = heartbeat_miss_ * (entry.phase_deadline ? kStartSilences : 1);
  entry.silence_deadline = clock_.now() + entry.silence_limit;
}

void HealthMonitor::note(WorkerId worker, std::string detail) { entries_[worker].detail = std::move(detail); }

void HealthMonitor::heartbeat(WorkerId worker) {
  Entry& entry = entries_[worker];
  listen(entry);
  entry.excused = false;
}

bool HealthMonitor::fresh(WorkerId worker) const {
  const auto found = entries_.find(worker);
  return found == entries_.end() || !found->second.silence_deadline || *found->second.silence_deadline > clock_.now();
}

std::vector<HealthMonitor::Overdue> HealthMonitor::takeOverdue() {
  std::vector<Overdue> overdue;
  const Clock::TimePoint now = clock_.now();
  for (auto& [worker, entry] : entries_) {
    const bool held_up = entry.silence_deadline && *entry.silence_deadline + kTimerDelayMax < now;
    if (held_up && !std::exchange(entry.excused, true)) listen(entry);
    if (entry.silence_deadline && *entry.silence_deadline <= now) {
      const std::string times = entry.phase_deadline ? fmt::format("{} times ", kStartSilences) : std::string();
      overdue.push_back({worker,
                         absl::UnavailableError(fmt::format("no heartbeat for {:g} s ({}deadlines.heartbeat_miss)",
                                                            secondsOf(entry.silence_limit), times)),
                         "heartbeat"});
    } else if (entry.phase_deadline && *entry.phase_deadline <= now) {
      const std::string at = entry.detail.empty() ? std::string() : ", at " + entry.detail;
      overdue.push_back({worker,
                         absl::DeadlineExceededError(
                             fmt::format("{} took longer than {:g} s{}", entry.phase, secondsOf(entry.limit), at)),
                         "deadline"});
    } else {
      continue;
    }
    entry.silence_deadline.reset();
    entry.phase_deadline.reset();
  }
  return overdue;
}

Clock::TimePoint HealthMonitor::nextDeadline() const {
  Clock::TimePoint next = Clock::TimePoint::max();
  for (const auto& [worker, entry] : entries_) {
    if (entry.silence_deadline) next = std::min(next, *entry.silence_deadline);
    if (entry.phase_deadline) next = std::min(next, *entry.phase_deadline);
  }
  return next;
}

}  // namespace latentd::supervisor
