#include "runtime/worker/stage_startup.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

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
  context.options.insert(load.stage_options().begin(), load.stage_options().end());
  return context;
}

StatusOr<std::unique_ptr<stages::Stage>> startStage(const stages::StageRegistry& registry,
                                                    const internal::v1::Load& load, EventSink& events) {
  std::unique_ptr<stages::Stage> stage;
  internal::v1::WorkerEvent ready_event;
  internal::v1::Ready& ready = *ready_event.mutable_ready();
  const GuardedResult started = runGuarded([&] {
    if (load.threads() > 0) at::set_num_threads(static_cast<int>(load.threads()));
    LATENTD_ASSIGN_OR_RETURN(stages::LoadContext context, loadContextOf(load));
    LATENTD_ASSIGN_OR_RETURN(stage, registry.create(load.stage()));
    PhaseReporter loading(events, "loading");
    context.progress = [&](double fraction, const std::string& detail) { loading.report(fraction, detail); };
    const auto begun = SteadyTime::now();
    loading.report(0, load.model_dir());
    LATENTD_RETURN_IF_ERROR(annotate(stage->load(context), "loading " + load.stage()));
    loading.report(1, load.model_dir());
    const auto loaded = SteadyTime::now();
    PhaseReporter warming_up(events, "warming up");
    warming_up.report(0, load.stage());
    LATENTD_RETURN_IF_ERROR(annotate(stage->warmUp(), "warming up " + load.stage()));
    warming_up.report(1, load.stage());
    ready.set_load_seconds(secondsBetween(begun, loaded));
    ready.set_warm_up_seconds(secondsBetween(loaded, SteadyTime::now()));
    fill(*stage, ready);
    return absl::OkStatus();
  });
  LATENTD_RETURN_IF_ERROR(started.status);
  events.post(std::move(ready_event));
  return stage;
}

}  // namespace latentd::worker
