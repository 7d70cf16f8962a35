#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "runtime/base/dtype.h"
#include "runtime/base/status.h"
#include "stages/text/umt5_config.h"
#include "stages/wan/served_model.h"
#include "stages/wan/transformer_config.h"

namespace latentd::plan {

// The shapes of a Wan 2.1 text-to-video model, from the config.json files of a diffusers directory: of those that the
// stages serve. A value type.
struct Model : stages::wan::ServedModel {
  std::string dir;  // absolute
  stages::Umt5Config text;
  std::optional<uint64_t> parameters_on_disk;  // of the transformer; absent: its weights are not there

  // Refuses what the stages refuse, in their words: by file, key and value; NOT_FOUND for a file that is missing. No
  // weight is read; headers of safetensors files are, where there are any.
  static StatusOr<Model> load(const std::string& dir);
};

// What a job asks for.
struct Job {
  uint32_t width = 832;
  uint32_t height = 480;
  uint32_t frames = 81;
  uint32_t steps = 50;
  double guidance = 5.0;
  DType dtype = DType::kBFloat16;

  bool guided() const { return guidance > 1.0; }
  // Passes of the model that a step consists of.
  uint32_t branches() const { return guided() ? 2 : 1; }
};
// INVALID_ARGUMENT with the nearest valid values, by the flag's name.
Status checkJob(const Model& model, const Job& job);

// The latents of a job.
stages::wan::LatentShape latentShape(const Model& model, const Job& job);
// Patches that the transformer sees: 32,760 for 81 frames of 832x480.
int64_t tokens(const Model& model, const Job& job);

// Rows of text that the transformer sees, padding included.
inline constexpr int64_t kTextRows = 512;

// Parameters of the parts as latentd loads them.
struct TransformerParameters {
  uint64_t layer_products = 0;   // of one block: products, which tensor parallelism divides
  uint64_t layer_rest = 0;       // of one block: norms, biases of what is summed
  uint64_t layer_float32 = 0;    // of one block: those kept in float32, whatever the type of the model
  uint64_t outside = 0;          // embeddings and output
  uint64_t outside_float32 = 0;  // of the time embedding and the output's modulation

  uint64_t total(int64_t layers) const {
    return (layer_products + layer_rest + layer_float32) * static_cast<uint64_t>(layers) + outside + outside_float32;
  }
};
TransformerParameters transformerParameters(const stages::wan::TransformerConfig& config);
uint64_t textParameters(const stages::Umt5Config& config);

}  // namespace latentd::plan
