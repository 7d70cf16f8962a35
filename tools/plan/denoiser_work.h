#pragma once

#include <cstdint>
#include <string_view>

#include "tools/plan/hardware.h"
#include "tools/plan/model.h"
#include "tools/plan/split.h"

namespace latentd::plan {

// What carries the heads that ulysses ranks scatter where the topology leaves it to `auto`.
struct HeadTransport {
  bool direct = false;      // by direct writes; else by NCCL, which packs
  std::string_view reason;  // what follows "as"; empty: there is no ulysses

  std::string_view name() const { return direct ? "cuda_ipc" : "c10d"; }
};
HeadTransport headTransport(const mesh::MeshDegrees& degrees, const Hardware& hardware);

// What one rank does in one pass of the model through its layers.
struct DenoiserWork {
  double matmul_flops = 0;
  double attention_flops = 0;        // with all keys at hand: to the text, and to the sequence unless a ring turns
  double block_attention_flops = 0;  // of the turns of a ring
  double memory_bytes = 0;           // read and written by kernels that do nothing but that, packing included
  double kernels = 0;
  double collectives = 0;
};

// What one rank sends in one step, by strategy. All passes of the step are in it.
struct Traffic {
  double ulysses = 0;
  double ring = 0;
  double tp = 0;
  double cfg = 0;
  double pp = 0;

  double total() const { return ulysses + ring + tp + cfg + pp; }
};

// Sizes that every part of the cost counts with.
struct RankShape {
  int64_t tokens = 0;    // of this rank, padding included
  int64_t sequence = 0;  // of the whole
  int64_t layers = 0;    // of the longest stage of the pipeline
  int64_t batch = 0;     // branches in a pass
  int64_t passes = 0;    // of a step
};
RankShape rankShape(const Model& model, const Job& job, const Split& split);

DenoiserWork denoiserWork(const Model& model, const Job& job, const Split& split);

// Formulas, with E = batch x tokens x dim elements of a rank's activations over tp ranks, each time all layers:
//   ulysses  four all-to-alls of E / tp (query, key, value, and the result back), (u-1)/u of each leaves the rank
//   ring     r-1 times keys and values, 2 E / tp; the all-gather variant moves the same bytes
//   tp       all-reduces of E, three times (two attentions, feed-forward), and of three float32 a token (norms across
//            heads), each of which sends 2 (t-1)/t of its bytes
//   cfg      the velocity of the rank's tokens, once a step
//   pp       E to the next stage, once a pass, and the velocity to all stages once a step
Traffic traffic(const Model& model, const Job& job, const Split& split);

// Seconds of a step, and what they consist of.
struct StepTime {
  double matmul = 0;
  double attention = 0;
  double memory = 0;
  double exchange = 0;  // not hidden behind anything
  double bubble = 0;    // a stage of a pipeline waits
  double device = 0;    // sum of the above
  double host = 0;      // to submit it all, beside the device's work
  double total = 0;     // the longer of the two
};
StepTime stepTime(const Model& model, const Job& job, const Split& split, const Hardware& hardware);

}  // namespace latentd::plan
