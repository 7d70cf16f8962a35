#include "stages/text/umt5_encoder.h"

#include <ATen/ScalarOps.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/isinf.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/log.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <utility>

#include "runtime/base/check.h"
#include "stages/device/numerics.h"
#include "stages/device/transfer.h"

namespace latentd::stages {
namespace {

// Published files have one or both; they are the same tensor.
constexpr const char* kEmbedding = "shared.weight";
constexpr const char* kEmbeddingCopy = "encoder.embed_tokens.weight";

constexpr int64_t kPadId = 0;
// The CPU's attention handles 16 keys at once and the rest by other instructions, which round differently in bfloat16.
// The reference's 512 rows have no rest.
constexpr int64_t kRowsMultiple = 16;

constexpr int64_t roundUp(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

// Added to the score of a key that is not attended to: the softmax makes exactly nothing of it.
double lowest(at::ScalarType type) {
  switch (type) {
    case at::kHalf:
      return std::numeric_limits<c10::Half>::lowest();
    case at::kBFloat16:
      return std::numeric_limits<c10::BFloat16>::lowest();
    default:
      return std::numeric_limits<float>::lowest();
  }
}

bool isReduced(at::ScalarType type) { return type == at::kHalf || type == at::kBFloat16; }

// float16 overflows in the residual of large encoders; the reference cuts what did.
at::Tensor clampHalf(const at::Tensor& hidden) {
  if (hidden.scalar_type() != at::kHalf) return hidden;
  constexpr double kHalfMax = 65504;
  // A tensor, so that the host need not wait for a device to know it.
  const at::Tensor limit = at::where(at::isinf(hidden).any(), kHalfMax - 1000, kHalfMax);
  return at::clamp(hidden, limit.neg(), limit);
}

// x *= factor, with the factor in the precision of the computation as in Python. The overload for scalars would round
// it to x's dtype first.
at::Tensor& scale(at::Tensor& x, double factor) { return x.mul_(at::native::wrapped_scalar_tensor(factor)); }

// The tanh form of GELU, operation by operation as the reference rounds it in bfloat16.
at::Tensor geluNew(const at::Tensor& x) {
  at::Tensor inner = at::pow(x, 3.0);
  scale(inner, 0.044715).add_(x);
  scale(inner, std::sqrt(2.0 / std::numbers::pi)).tanh_().add_(1.0);
  return inner.mul_(x * 0.5);
}

}  // namespace

at::Tensor relativePositionBuckets(const Umt5Config& config, int64_t length) {
  const int64_t per_direction = config.position_buckets / 2;
  const int64_t exact = per_direction / 2;
  const at::Tensor position = at::arange(1 - length, length, at::kLong);
  const at::Tensor distance = at::abs(position);
  // In float32, as the reference: at a border the last bit decides.
  const double range = std::log(static_cast<double>(config.position_distance_max) / static_cast<double>(exact));
  at::Tensor wide = at::log(distance.to(at::kFloat).div(exact)).div(range).mul(per_direction - exact);
  // Distance 0 gives minus infinity, which no integer holds; it is among the exact ones.
  wide = at::clamp(wide, 0).to(at::kLong).add(exact);
  wide = at::minimum(wide, at::full_like(wide, per_direction - 1));
  const at::Tensor later = position.gt(0).to(at::kLong).mul(per_direction);
  return at::where(distance.lt(exact), distance, wide).add(later);
}

at::Tensor positionBias(const at::Tensor& by_distance, int64_t length) {
  const int64_t length_max = (by_distance.size(1) + 1) / 2;
  // Row i holds the distances -i .. length-1-i: the windows of the table, last first.
  return by_distance.narrow(1, length_max - length, 2 * length - 1).unfold(1, length, 1).flip(1).contiguous();
}

StatusOr<Umt5Encoder> Umt5Encoder::load(const std::string& directory, const Options& options) {
  Umt5Encoder encoder;
  encoder.options_ = options;
  useReferenceNumerics(options.device, AttentionShapes::kMany);
  LATENTD_ASSIGN_OR_RETURN(encoder.config_, readUmt5Config(directory + "/config.json"));
  LATENTD_ASSIGN_OR_RETURN(WeightReader reader, WeightReader::open(directory, options.progress, options.check_only));
  const Umt5Config& config = encoder.config_;
  const char* embedding = reader.has(kEmbedding) ? kEmbedding : kEmbeddingCopy;
  encoder.embedding_ = reader.take(embedding, {config.vocab_size, config.d_model}, options.dtype, options.device);
  const at::Tensor buckets = relativePositionBuckets(config, options.length_max);
  for (int64_t i = 0; i < config.layers; ++i) {
    Layer layer = encoder.takeLayer(reader, i, buckets);
    if (!layer.position_bias.defined() && !options.check_only) break;  // finish() says why
    encoder.layers_.push_back(std::move(layer));
  }
  encoder.final_norm_ = reader.take("encoder.final_layer_norm.weight", {config.d_model}, options.dtype, options.device);
  LATENTD_RETURN_IF_ERROR(reader.finish({kEmbeddingCopy}));
  encoder.weight_bytes_ = reader.takenBytes();
  return encoder;
}

Umt5Encoder::Layer Umt5Encoder::takeLayer(WeightReader& reader, int64_t index, const at::Tensor& buckets) const {
  const std::string prefix = "encoder.block." + std::to_string(index) + ".layer.";
  const int64_t inner = config_.heads * config_.d_kv;
  // Undefined after a problem, which reader.finish() tells.
  const auto take = [&](const char* name, std::vector<int64_t> shape, at::ScalarType dtype) {
    return reader.take(prefix + name + ".weight", shape, dtype, options_.device);
  };
  const at::ScalarType dtype = options_.dtype;
  Layer layer;
  layer.attention_norm = take("0.layer_norm", {config_.d_model}, dtype);
  layer.query = take("0.SelfAttention.q", {inner, config_.d_model}, dtype);
  layer.key = take("0.SelfAttention.k", {inner, config_.d_model}, dtype);
  layer.value = take("0.SelfAttention.v", {inner, config_.d_model}, dtype);
  layer.output = take("0.SelfAttention.o", {config_.d_model, inner}, dtype);
  layer.feed_forward_norm = take("1.layer_norm", {config_.d_model}, dtype);
  layer.gate = take("1.DenseReluDense.wi_0", {config_.d_ff, config_.d_model}, dtype);
  layer.linear = take("1.DenseReluDense.wi_1", {config_.d_ff, config_.d_model}, dtype);
  // float16 does not hold what leaves the feed-forward part, so the reference keeps this one in float32.
  layer.feed_forward_output =
      take("1.DenseReluDense.wo", {config_.d_model, config_.d_ff}, dtype == at::kHalf ? at::kFloat : dtype);
  const at::Tensor bias =
      take("0.SelfAttention.relative_attention_bias", {config_.position_buckets, config_.heads}, dtype);
  if (bias.defined()) layer.position_bias = at::embedding(bias, buckets.to(options_.device)).t().contiguous();
  return layer;
}

at::Tensor Umt5Encoder::norm(const at::Tensor& hidden, const at::Tensor& weight) const {
  const at::Tensor variance = hidden.to(at::kFloat).square().mean(-1, true);
  at::Tensor normed = hidden * at::rsqrt(variance + config_.norm_epsilon);
  if (isReduced(weight.scalar_type())) normed = normed.to(weight.scalar_type());
  return weight * normed;
}

at::Tensor Umt5Encoder::attention(const Layer& layer, const at::Tensor& hidden, int64_t real) const {
  const int64_t length = hidden.size(0);
  const auto heads = [&](const at::Tensor& weight) {
    return at::linear(hidden, weight).view({1, length, config_.heads, config_.d_kv}).transpose(1, 2);
  };
  const at::Tensor bias = positionBias(layer.position_bias, length).unsqueeze(0);
  bias.slice(-1, real).fill_(lowest(bias.scalar_type()));
  const at::Tensor mixed = at::scaled_dot_product_attention(heads(layer.query), heads(layer.key), heads(layer.value),
                                                            bias, /*dropout_p=*/0.0, /*is_causal=*/false,
                                                            /*scale=*/1.0);
  return at::linear(mixed.transpose(1, 2).reshape({length, config_.heads * config_.d_kv}), layer.output);
}

at::Tensor Umt5Encoder::feedForward(const Layer& layer, const at::Tensor& hidden) const {
  const at::Tensor gated = geluNew(at::linear(hidden, layer.gate)).mul_(at::linear(hidden, layer.linear));
  return at::linear(gated.to(layer.feed_forward_output.scalar_type()), layer.feed_forward_output);
}

at::Tensor Umt5Encoder::encode(const std::vector<int64_t>& ids) const {
  LATENTD_CHECK(!ids.empty() && static_cast<int64_t>(ids.size()) <= options_.length_max,
                "a text has 1 to length_max ids");
  const auto real = static_cast<int64_t>(ids.size());
  std::vector<int64_t> padded = ids;
  padded.resize(static_cast<size_t>(std::min(roundUp(real, kRowsMultiple), options_.length_max)), kPadId);
  at::Tensor hidden = at::embedding(embedding_, toDevice(at::tensor(padded, at::kLong), options_.device));
  for (const Layer& layer : layers_) {
    hidden = clampHalf(hidden + attention(layer, norm(hidden, layer.attention_norm), real));
    hidden = clampHalf(hidden + feedForward(layer, norm(hidden, layer.feed_forward_norm)));
  }
  return norm(hidden.slice(0, 0, real), final_norm_);
}

}  // namespace latentd::stages
