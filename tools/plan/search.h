#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "mesh/device_mesh.h"
#include "runtime/base/status.h"
#include "tools/plan/denoiser_work.h"
#include "tools/plan/hardware.h"
#include "tools/plan/memory.h"
#include "tools/plan/model.h"
#include "tools/plan/split.h"

namespace latentd::plan {

enum class Goal {
  kLatency,     // the soonest video
  kThroughput,  // the most videos an hour
};

struct Request {
  Model model;
  Job job;
  Hardware hardware;
  uint32_t gpus = 1;
  Goal goal = Goal::kLatency;
};

// Where to look for what would fit, when nothing does: eight hosts of eight.
inline constexpr uint32_t kGpusMax = 64;

// One way to use the GPUs, and what is predicted of it. The denoiser has the GPUs from 0 on; text and decoder take
// those that it leaves of `gpus`, or share its GPUs. A denoiser that fits one host has the others there too.
struct Candidate {
  Split split;
  uint32_t gpus = 1;         // over which it is laid out
  uint32_t decode_gpus = 1;  // height shards, on the last GPUs
  uint32_t text_gpu = 0;
  StepTime step;
  Traffic traffic;
  RankMemory denoise;
  RankMemory text;
  RankMemory decode;
  uint64_t busiest_bytes = 0;  // on the GPU that holds most
  double text_seconds = 0;
  double decode_seconds = 0;
  double decode_sent_bytes = 0;
  double job_seconds = 0;    // from its first command to its last frame, alone
  double jobs_per_hour = 0;  // of a full queue
  double efficiency = 0;     // of a step: one GPU's time over this one's times the GPUs
  std::string unserved;      // what this version cannot do of it; empty: nothing

  // The GPUs that do anything.
  uint32_t usedGpus() const;
};

struct Rejection {
  Split split;
  std::string reason;        // the limit that is not kept, the same for all splits that do not keep it
  uint64_t least_bytes = 0;  // that a GPU needs, where that is the limit
};

struct Plan {
  std::vector<Candidate> ranked;  // by what the goal counts, as it is shown; those that are equal by fewer GPUs
  std::vector<Rejection> rejected;
  StepTime one_gpu;  // a step on one GPU, whether it fits or not
  Goal goal = Goal::kLatency;

  // The best that this version serves; null: none. Of those whose throughput is all but the best, which predictions
  // cannot tell apart, the one with the soonest video.
  const Candidate* proposal() const;
};

// Every split of `gpus` GPUs or fewer is looked at once. RESOURCE_EXHAUSTED where nothing fits: names the least that
// any split needs and what would fit.
StatusOr<Plan> search(const Request& request);

// All ways to write `gpus` as a product over dp, cfg, ring, ulysses, pp and tp.
std::vector<mesh::MeshDegrees> factorisations(uint32_t gpus);

// The limit of model or job that a split does not keep, memory apart; empty: it is possible.
std::string obstacle(const Request& request, const mesh::MeshDegrees& degrees);

}  // namespace latentd::plan
