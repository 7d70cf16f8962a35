#pragma once

#include <cstdint>

#include "tools/plan/model.h"

namespace latentd::plan {

// What decoding a video costs, by walking the decoder's layers (stages/vae/decoder.cc) without running them.
struct VaeWork {
  uint64_t parameters = 0;     // of the decoder
  double flops = 0;            // of all convolutions and the attention, for the whole video
  double halo_bytes = 0;       // per border between two shards and direction: rows of all convolutions of the video
  double gather_bytes = 0;     // the middle block attends to all rows: keys and values of the whole image, all frames
  double video_bytes = 0;      // of all frames, which go to the first rank
  uint64_t largest_bytes = 0;  // of the largest activation of a chunk
  uint64_t cache_bytes = 0;    // what convolutions remember of the chunk before
  int64_t exchanges = 0;       // of halos, for the whole video
};
VaeWork vaeWork(const Model& model, const Job& job);

}  // namespace latentd::plan
