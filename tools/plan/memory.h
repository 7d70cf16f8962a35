#pragma once

#include <cstdint>

#include "tools/plan/model.h"
#include "tools/plan/split.h"

namespace latentd::plan {

// Bytes of one rank of a group on its GPU, while a job of the plan's size runs.
struct RankMemory {
  uint64_t weights = 0;
  uint64_t activations = 0;  // peak of a step; for the denoiser the text's keys and values are in it
  uint64_t buffers = 0;      // of exchanges: what is sent and received, targets of heads, blocks of a ring, halos
  uint64_t pools = 0;        // slots of the edges that the group publishes
  uint64_t process = 0;      // CUDA context, library workspaces, communicators

  uint64_t total() const { return weights + activations + buffers + pools + process; }
};

RankMemory denoiserMemory(const Model& model, const Job& job, const Split& split);
RankMemory textMemory(const Model& model, const Job& job);
RankMemory decoderMemory(const Model& model, const Job& job, uint32_t spatial);

}  // namespace latentd::plan
