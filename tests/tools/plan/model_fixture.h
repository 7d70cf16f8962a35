#pragma once

#include <string>

#include "tests/stages/temp_checkpoint.h"
#include "tools/plan/model.h"
#include "tools/plan/search.h"

namespace latentd::plan {

// The published sizes of Wan 2.1 text to video, as config.json files without weights.
struct Sizes {
  int heads = 12;
  int layers = 30;
  int ffn = 8960;
};
inline constexpr Sizes kWan13{};                                         // 1.3 billion parameters
inline constexpr Sizes kWan14{.heads = 40, .layers = 40, .ffn = 13824};  // 14 billion

// model_index.json of such a model; `more` begins with a comma.
std::string modelIndex(const std::string& more = "");

// A diffusers directory of these sizes, removed at the end. Owner: the test.
class ModelFolder {
 public:
  explicit ModelFolder(const Sizes& sizes);
  const stages::testing::TempCheckpoint& folder() const { return folder_; }
  const std::string& path() const { return folder_.path(); }

 private:
  stages::testing::TempCheckpoint folder_;
};

// Loaded, with the text encoder (UMT5-XXL) and the VAE of both.
Model modelOf(const Sizes& sizes);
// On H200 GPUs, for 81 frames of 832x480 in bfloat16.
Request requestFor(const Sizes& sizes, uint32_t gpus);

}  // namespace latentd::plan
