#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "runtime/base/status.h"
#include "stages/text/umt5_config.h"
#include "stages/weights/checkpoint.h"

namespace latentd::stages {

// The encoder half of UMT5: token ids to one row of d_model features each. Every layer has a position bias of its own,
// and attention is not scaled.
// Owner: the text encoder stage. Thread: one at a time. States: loaded. Failure: load() names file and tensor; encode()
// may throw c10::Error (memory).
class Umt5Encoder {
 public:
  struct Options {
    at::ScalarType dtype = at::kFloat;
    at::Device device = at::kCPU;
    int64_t length_max = 512;  // ids of one text
    WeightReader::Progress progress = [](double, const std::string&) {};
    bool check_only = false;  // no weight is read; the model must not run
  };

  // A checkpoint's text_encoder/ folder: config.json and (sharded) safetensors.
  static StatusOr<Umt5Encoder> load(const std::string& directory, const Options& options);

  // [ids, d_model] for 1 to length_max ids below vocab_size. The reference computes 512 rows, masks the padding and
  // cuts it off; a masked key adds exactly nothing, so that padding to the next 16 rows gives the same bits for less.
  at::Tensor encode(const std::vector<int64_t>& ids) const;

  const Umt5Config& config() const { return config_; }
  at::ScalarType dtype() const { return options_.dtype; }
  at::Device device() const { return options_.device; }
  uint64_t weightBytes() const { return weight_bytes_; }

 private:
  struct Layer {
    at::Tensor attention_norm, query, key, value, output;
    at::Tensor position_bias;  // [heads, 2 * length_max - 1], by key position minus query position
    at::Tensor feed_forward_norm, gate, linear, feed_forward_output;
  };

  Umt5Encoder() = default;
  Layer takeLayer(WeightReader& reader, int64_t index, const at::Tensor& buckets) const;
  at::Tensor norm(const at::Tensor& hidden, const at::Tensor& weight) const;
  // Keys from `real` on are masked.
  at::Tensor attention(const Layer& layer, const at::Tensor& hidden, int64_t real) const;
  at::Tensor feedForward(const Layer& layer, const at::Tensor& hidden) const;

  Options options_;
  Umt5Config config_;
  uint64_t weight_bytes_ = 0;
  at::Tensor embedding_;
  std::vector<Layer> layers_;
  at::Tensor final_norm_;
};

// The bucket of each key position minus query position, from 1 - length to length - 1: int64 [2 * length - 1].
at::Tensor relativePositionBuckets(const Umt5Config& config, int64_t length);

// [heads, length, length] of the biases by distance, as Umt5Encoder keeps them for length_max.
at::Tensor positionBias(const at::Tensor& by_distance, int64_t length);

}  // namespace latentd::stages
