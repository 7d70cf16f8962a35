#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "proto/api.pb.h"
#include "proto/worker.pb.h"
#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "runtime/base/strong_id.h"
#include "runtime/config/topology.h"
#include "runtime/supervisor/worker_id.h"

namespace latentd::supervisor {

// Where the time of each listed job went: what its ranks told, beside what was seen here. Bounded by trace.bytes_max;
// the traces of the oldest jobs go first.
// Owner: JobManager. Thread: the supervisor's loop. States: of a job, from onSubmitted() until remove() or until its
// trace gave way. Failure: what belongs to no known job is dropped; with trace.spans_max: 0 nothing is kept.
class TraceStore {
 public:
  using NameOfEdge = std::function<std::string(ChannelId)>;

  TraceStore(const config::Topology& topology, const Clock& clock) : topology_(topology), clock_(clock) {}

  void onSubmitted(const JobId& job);
  // The pipeline took it.
  void onAdmitted(const JobId& job);
  void onCommandSent(const JobId& job, WorkerId worker);
  // The rank's answer to that command.
  void onAnswer(const JobId& job, WorkerId worker, const internal::v1::CommandTrace& trace, const NameOfEdge& edge);
  // Told by the producer.
  void onTransfer(const JobId& job, WorkerId worker, const std::string& edge, const internal::v1::TransferDone& done);
  void remove(const JobId& job);

  // Ranks by group in the topology's order, then the daemon.
  StatusOr<std::vector<v1::TraceTrack>> find(const JobId& job) const;
  uint64_t bytes() const { return bytes_; }

 private:
  struct Track {
    v1::TraceTrack told;
    std::optional<Clock::TimePoint> sent;  // of the command that is not answered
  };
  struct Trace {
    uint64_t order = 0;  // of submission
    uint64_t bytes = 0;
    Clock::TimePoint submitted;
    std::optional<Clock::TimePoint> admitted;
    std::map<WorkerId, Track> tracks;
  };

  bool enabled() const { return topology_.trace.spans_max > 0; }
  Trace* lookUp(const JobId& job);
  Track& trackOf(Trace& trace, WorkerId worker);
  void grow(Trace& trace, uint64_t bytes);

  const config::Topology& topology_;
  const Clock& clock_;
  uint64_t next_order_ = 0;
  uint64_t bytes_ = 0;
  std::unordered_map<JobId, Trace> traces_;
  std::map<uint64_t, JobId> by_order_;
};

}  // namespace latentd::supervisor
