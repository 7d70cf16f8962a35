#pragma once

#include <memory>

#include "proto/worker.pb.h"
#include "runtime/worker/event_sink.h"
#include "stages/stage_registry.h"

namespace latentd::worker {

// What a stage is loaded with. INVALID_ARGUMENT for a dtype that is none.
StatusOr<stages::LoadContext> loadContextOf(const internal::v1::Load& load);

// What a loaded, or checked, stage says of itself; times are the caller's.
void fill(const stages::Stage& stage, internal::v1::Ready& ready);

// Makes the stage that the supervisor asked for, loads its model and warms it up, reporting each phase's progress and
// then Ready. Called on the executor's thread, whose thread count of torch it sets.
StatusOr<std::unique_ptr<stages::Stage>> startStage(const stages::StageRegistry& registry,
                                                    const internal::v1::Load& load, EventSink& events);

}  // namespace latentd::worker
