#pragma once

#include <cstdint>

#include "tools/plan/hardware.h"
#include "tools/plan/model.h"

namespace latentd::plan {

// Seconds of a job outside the denoiser.
double textSeconds(const Model& model, const Job& job, const Hardware& hardware);

struct DecodeTime {
  double seconds = 0;
  double sent_bytes = 0;  // by a rank with two neighbours: halos, the middle block's keys and values, frames
};
// Over `spatial` height shards. A decode on one GPU is what was measured; the exchanges of shards are not hidden.
DecodeTime decodeTime(const Model& model, const Job& job, uint32_t spatial, const Hardware& hardware);

}  // namespace latentd::plan
