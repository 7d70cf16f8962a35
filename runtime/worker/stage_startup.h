#pragma once

#include <memory>

#include "proto/worker.pb.h"
#include "runtime/worker/event_sink.h"
#include "runtime/worker/stage_executor.h"
#include "stages/stage_registry.h"

namespace latentd::worker {

// What a stage is loaded with. INVALID_ARGUMENT for a dtype that is none.
StatusOr<stages::LoadContext> loadContextOf(const internal::v1::Load& load);

// What a loaded, or checked, stage says of itself; times are the caller's.
void fill(const stages::Stage& stage, internal::v1::Ready& ready);

// Where a stage is started.
struct StartSite {
  const stages::StageRegistry& registry;
  DescriptorInbox& descriptors;
  EventSink& events;
  StepGate& gate;
};

// Meets the other ranks, makes the stage that the supervisor asked for, loads its model, waits until every rank has,
// and warms it up, reporting each phase's progress and then Ready. Called on the executor's thread, whose thread count
// of torch it sets.
GuardedResult startStage(const internal::v1::Load& load, const StartSite& site, StageExecutor::Started& started);

}  // namespace latentd::worker
