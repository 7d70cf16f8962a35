#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "runtime/supervisor/worker_id.h"

namespace latentd::supervisor {

// Deadlines of worker processes: each phase of a start has one, and a registered worker sends heartbeats. In a phase it
// may be silent for kStartSilences times as long: a driver that makes contexts for many processes at once stops all
// threads of a process for seconds. What is late is told once; the caller ends that worker. A silence during which this
// process itself did not run is excused once: a daemon that was stopped finds its workers' heartbeats unread.
// Owner: Fleet. Thread: the supervisor's loop.
class HealthMonitor {
 public:
  struct Overdue {
    WorkerId worker;
    Status cause;
    std::string reason;  // metric label: "deadline" or "heartbeat"
  };

  static constexpr int kStartSilences = 6;

  HealthMonitor(const Clock& clock, std::chrono::milliseconds heartbeat_miss)
      : clock_(clock), heartbeat_miss_(heartbeat_miss) {}

  // The worker is in this phase and has `limit` for it; replaces an earlier phase. `what` goes into the message:
  // "loading (deadlines.load)".
  void expect(WorkerId worker, std::string what, std::chrono::milliseconds limit);
  // The phase ended well and none follows.
  void settle(WorkerId worker);
  // What the phase does at present, for the message of its deadline.
  void note(WorkerId worker, std::string detail);
  // A heartbeat, or the first event: from now on the worker must not be silent.
  void heartbeat(WorkerId worker);
  void forget(WorkerId worker) { entries_.erase(worker); }

  // No heartbeat is expected, or the last one is fresh.
  bool fresh(WorkerId worker) const;
  std::vector<Overdue> takeOverdue();
  Clock::TimePoint nextDeadline() const;

 private:
  struct Entry {
    std::string phase;
    std::string detail;
    std::chrono::milliseconds limit{};
    std::optional<Clock::TimePoint> phase_deadline;
    std::optional<Clock::TimePoint> silence_deadline;
    std::chrono::milliseconds silence_limit{};
    bool excused = false;  // its present silence
  };

  // The silence begins now.
  void listen(Entry& entry) const;

  const Clock& clock_;
  const std::chrono::milliseconds heartbeat_miss_;
  std::map<WorkerId, Entry> entries_;
};

}  // namespace latentd::supervisor
