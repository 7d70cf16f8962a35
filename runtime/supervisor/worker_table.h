#pragma once

#include <google/protobuf/repeated_field.h>

#include <cstdint>
#include <string_view>
#include <vector>

#include "proto/api.pb.h"
#include "proto/worker.pb.h"
#include "runtime/base/strong_id.h"
#include "runtime/supervisor/worker_id.h"

namespace latentd::supervisor {

// Where a worker's process is in its life.
enum class WorkerPhase {
  kAbsent,     // no process
  kStarting,   // started, has not registered
  kLoading,    // registered, reads the model
  kWarmingUp,  // runs its stage once
  kReady,      // takes commands
  kStopping,   // told to end
  kKilled,     // killed, not reaped yet
};
std::string_view toString(WorkerPhase phase);
// As users see it; a ready worker is busy while its group holds commands.
v1::WorkerState toProto(WorkerPhase phase, bool busy);
// Whether a worker may go from one phase to the other; every change is checked against it.
bool canFollow(WorkerPhase from, WorkerPhase to);

struct WorkerRecord {
  WorkerPhase phase = WorkerPhase::kAbsent;
  internal::v1::PhaseProgress progress;
  internal::v1::Ready ready;
  uint64_t resident_bytes = 0;
  google::protobuf::RepeatedPtrField<internal::v1::DeviceMemory> device_memory;
};

// The ranks of one group. Owner: Group. Thread: the supervisor's loop. An impossible change aborts.
class WorkerTable {
 public:
  explicit WorkerTable(uint32_t ranks) : workers_(ranks) {}

  uint32_t ranks() const { return static_cast<uint32_t>(workers_.size()); }
  WorkerRecord& at(Rank rank);
  const WorkerRecord& at(Rank rank) const;
  void enter(Rank rank, WorkerPhase phase);
  bool all(WorkerPhase phase) const;

 private:
  std::vector<WorkerRecord> workers_;
};

}  // namespace latentd::supervisor
