#include "runtime/supervisor/rank_shared.h"

#include <sys/stat.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

#include "runtime/base/log.h"
#include "runtime/base/step_gate.h"
#include "runtime/supervisor/limits.h"

namespace latentd::supervisor {

StatusOr<std::unique_ptr<RankShared>> RankShared::make(uint32_t ranks, std::string folder) {
  LATENTD_ASSIGN_OR_RETURN(ShmRegion step_gate, StepGate::createRegion());
  LATENTD_ASSIGN_OR_RETURN(ShmRegion records, FlightRecorder::createRegion(ranks));
  LATENTD_ASSIGN_OR_RETURN(FlightRecorder recorder, FlightRecorder::attach(std::move(records), Rank(0)));
  if (::mkdir(folder.c_str(), 0700) != 0) return errnoStatus(errno, "make " + folder);
  return std::unique_ptr<RankShared>(new RankShared(std::move(step_gate), std::move(recorder), std::move(folder)));
}

Status RankShared::handTo(WorkerId worker, CommandSink& sink) const {
  LATENTD_RETURN_IF_ERROR(annotate(sink.sendDescriptor(worker, kStepGateId, step_gate_.fd()), "its step gate"));
  return annotate(sink.sendDescriptor(worker, kFlightRecorderId, recorder_.fd()), "its flight recorder");
}

void RankShared::fill(internal::v1::Load& load) const {
  load.set_step_gate_id(kStepGateId);
  load.mutable_communication()->set_flight_recorder_id(kFlightRecorderId);
  load.mutable_communication()->set_rendezvous_file(folder_ + "/store");
}

void RankShared::removeFiles() const {
  std::error_code error;
  std::filesystem::remove_all(folder_, error);
  if (error) getLogger("fleet")->warn("cannot remove {}: {}", folder_, error.message());
}

}  // namespace latentd::supervisor
