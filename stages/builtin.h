#pragma once

#include "stages/stage_registry.h"

namespace latentd::stages {

// Adds every stage of this tree under the name that topologies use. A worker of one's own can add further ones.
void registerBuiltinStages(StageRegistry& registry);

}  // namespace latentd::stages
