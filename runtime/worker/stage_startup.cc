#include "runtime/worker/stage_startup.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "mesh/communication_error.h"
#include "mesh/mesh.h"
#include "runtime/base/flight_recorder.h"
#include "runtime/base/status_field.h"
#include "runtime/worker/exception_boundary.h"
#include "runtime/worker/proto_convert.h"

namespace latentd::worker {
namespace {

using SteadyTime = std::chrono::steady_clock;

// Ten reports a second move a progress bar; a load may report every tensor.
constexpr std::chrono::milliseconds kReportInterval{100};

// Turns a stage's progress calls into events, not too many. Thread: the executor's.
class PhaseReporter {
 public:
  PhaseReporter(EventSink& events, std::string phase) : events_(events), phase_(std::move(phase)) {}

  void report(double fraction, const std::string& detail) {
    const auto now = SteadyTime::now();
    if (fraction > 0 && fraction < 1 && now < next_) return;
    next_ = now + kReportInterval;
    internal::v1::WorkerEvent event;
    event.mutable_phase()->set_phase(phase_);
    event.mutable_phase()->set_fraction(std::clamp(fraction, 0.0, 1.0));
    event.mutable_phase()->set_detail(detail);
    events_.post(std::move(event));
  }

 private:
  EventSink& events_;
  const std::string phase_;
  SteadyTime::time_point next_{};
};

double secondsBetween(SteadyTime::time_point from, SteadyTime::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

MeshDegrees degreesOf(const internal::v1::Load& load) {
  return load.has_degrees() ? latentd::degreesOf(load.degrees()) : MeshDegrees{};
}

// What waits for others fails, at the latest, with its deadline: some rank has a cause of its own to tell.
Status waitedInVain(const Status& status) {
  if (!status.ok()) throw mesh::CommunicationError(status);
  return status;
}

mesh::ScatterTransport scatterTransport(const internal::v1::Communication& communication) {
  const std::string& name = communication.ulysses_transport();
  if (name != "shm" && name != "cuda_ipc") return mesh::ScatterTransport::kC10d;
  return communication.ulysses_required() ? mesh::ScatterTransport::kDirect : mesh::ScatterTransport::kDirectIfPossible;
}

StatusOr<std::unique_ptr<mesh::Mesh>> makeMesh(const internal::v1::Load& load, DescriptorInbox& descriptors) {
  const internal::v1::Communication& communication = load.communication();
  LATENTD_ASSIGN_OR_RETURN(ShmRegion region, descriptors.take(communication.flight_recorder_id()));
  LATENTD_ASSIGN_OR_RETURN(FlightRecorder recorder, FlightRecorder::attach(std::move(region), Rank(load.rank())));
  mesh::Mesh::Options options;
  options.degrees = degreesOf(load);
  options.rank = Rank(load.rank());
  options.device = at::Device(load.device());
  options.backend = communication.backend() == mesh::toString(mesh::CommunicationBackend::kNccl)
                        ? mesh::CommunicationBackend::kNccl
                        : mesh::CommunicationBackend::kGloo;
  options.ulysses = scatterTransport(communication);
  options.rendezvous_file = communication.rendezvous_file();
  options.timeout = std::chrono::milliseconds(communication.timeout_ms());
  options.recorder = std::move(recorder);
  StatusOr<std::unique_ptr<mesh::Mesh>> made = mesh::Mesh::make(std::move(options));
  if (!absl::IsInvalidArgument(made.status())) LATENTD_RETURN_IF_ERROR(waitedInVain(made.status()));
  return made;
}

// With what to change, where the topology asks for direct writes that turned out to be impossible.
Status advised(const Status& status, const internal::v1::Communication& communication, mesh::Mesh* mesh) {
  const bool refused = mesh != nullptr && communication.ulysses_required() && !mesh->headScatter().unshared().ok();
  if (status.ok() || !refused) return status;
  return makeStatus(status.code(), messageOf(status) + "; the topology asks for ulysses_transport: " +
                                       communication.ulysses_transport() + ", auto would take c10d now");
}

Status awaitOthers(const internal::v1::Load& load, StepGate& gate) {
  const std::chrono::milliseconds limit(load.communication().start_timeout_ms());
  return waitedInVain(gate.meet(load.world_size(), SteadyTime::now() + limit));
}

}  // namespace

void fill(const stages::Stage& stage, internal::v1::Ready& ready) {
  *ready.mutable_limits() = toProto(stage.limits());
  for (const stages::MethodSpec& method : stage.methods())
    *ready.add_methods() = toProto(method);
  ready.set_weight_bytes(stage.weightBytes());
}

StatusOr<stages::LoadContext> loadContextOf(const internal::v1::Load& load) {
  stages::LoadContext context;
  context.model_dir = load.model_dir();
  context.device = load.device();
  context.dtype = static_cast<DType>(load.dtype());
  if (byteSize(context.dtype) == 0) {
    return atField(absl::InvalidArgumentError("group " + load.group() + ": dtype " + std::to_string(load.dtype()) +
                                              " is unknown; float32 is one that is known"),
                   "dtype");
  }
  context.degrees = degreesOf(load);
  context.options.insert(load.stage_options().begin(), load.stage_options().end());
  return context;
}

GuardedResult startStage(const internal::v1::Load& load, const StartSite& site, StageExecutor::Started& started) {
  internal::v1::WorkerEvent ready_event;
  internal::v1::Ready& ready = *ready_event.mutable_ready();
  GuardedResult result = runGuarded([&] {
    if (load.threads() > 0) at::set_num_threads(static_cast<int>(load.threads()));
    PhaseReporter loading(site.events, "loading");
    const auto begun = SteadyTime::now();
    if (load.has_communication()) {
      loading.report(0, "meeting the other ranks");
      LATENTD_ASSIGN_OR_RETURN(started.mesh, makeMesh(load, site.descriptors));
    }
    LATENTD_ASSIGN_OR_RETURN(stages::LoadContext context, loadContextOf(load));
    context.mesh = started.mesh.get();
    context.progress = [&](double fraction, const std::string& detail) { loading.report(fraction, detail); };
    LATENTD_ASSIGN_OR_RETURN(started.stage, site.registry.create(load.stage()));
    loading.report(0, load.model_dir());
    LATENTD_RETURN_IF_ERROR(annotate(started.stage->load(context), "loading " + load.stage()));
    loading.report(1, load.model_dir());
    const auto loaded = SteadyTime::now();
    if (load.has_communication()) LATENTD_RETURN_IF_ERROR(awaitOthers(load, site.gate));
    PhaseReporter warming_up(site.events, "warming up");
    warming_up.report(0, load.stage());
    const auto met = SteadyTime::now();
    LATENTD_RETURN_IF_ERROR(annotate(started.stage->warmUp(), "warming up " + load.stage()));
    warming_up.report(1, load.stage());
    ready.set_load_seconds(secondsBetween(begun, loaded));
    ready.set_warm_up_seconds(secondsBetween(met, SteadyTime::now()));
    fill(*started.stage, ready);
    if (started.mesh) ready.set_ulysses_obstacle(messageOf(started.mesh->headScatter().unshared()));
    return absl::OkStatus();
  });
  result.status = advised(result.status, load.communication(), started.mesh.get());
  if (result.status.ok()) site.events.post(std::move(ready_event));
  return result;
}

}  // namespace latentd::worker
