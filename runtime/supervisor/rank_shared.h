#pragma once

#include <memory>
#include <string>
#include <utility>

#include "proto/worker.pb.h"
#include "runtime/base/flight_recorder.h"
#include "runtime/base/shm_region.h"
#include "runtime/base/status.h"
#include "runtime/supervisor/command_sink.h"
#include "runtime/supervisor/worker_id.h"

namespace latentd::supervisor {

// What the ranks of a group share for one epoch: the step gate, the flight recorder, which the supervisor reads too,
// and the file by which they find each other. Owner: Group. Thread: the supervisor's loop. Failure: make() and handTo()
// say what could not be made or sent.
class RankShared {
 public:
  // Makes the folder, inside one that exists.
  static StatusOr<std::unique_ptr<RankShared>> make(uint32_t ranks, std::string folder);
  RankShared(const RankShared&) = delete;
  RankShared& operator=(const RankShared&) = delete;
  ~RankShared() { removeFiles(); }

  // The memory, before the command that fill() has completed.
  Status handTo(WorkerId worker, CommandSink& sink) const;
  void fill(internal::v1::Load& load) const;
  // Once no rank is left. What they recorded stays readable.
  void removeFiles() const;

  const FlightRecorder& recorder() const { return recorder_; }

 private:
  RankShared(ShmRegion step_gate, FlightRecorder recorder, std::string folder)
      : step_gate_(std::move(step_gate)), recorder_(std::move(recorder)), folder_(std::move(folder)) {}

  const ShmRegion step_gate_;
  const FlightRecorder recorder_;
  const std::string folder_;
};

}  // namespace latentd::supervisor
