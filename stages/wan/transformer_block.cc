#include "stages/wan/transformer_block.h"

#include <utility>

#include "stages/wan/rope.h"

namespace latentd::stages::wan {
namespace {

// Rows of the modulation, for each of the two modulated parts: shift, scale, gate.
constexpr int64_t kModulationRows = 6;
enum ModulationRow : int64_t { kShift, kScale, kGate, kFfnShift, kFfnScale, kFfnGate };

}  // namespace

TransformerBlock::TransformerBlock(const TransformerConfig& config, const LayerLoader& loader,
                                   const mesh::TensorParallel& ranks)
    : config_(config), ranks_(ranks) {
  const int64_t dim = config.dim();
  const WeightPart outputs{.dim = 0, .parts = ranks.degree(), .part = ranks.rank()};
  const WeightPart inputs{.dim = 1, .parts = ranks.degree(), .part = ranks.rank()};
  modulation_table_ = loader.inFloat32().take("scale_shift_table", {1, kModulationRows, dim});

  const LayerLoader self = loader.child("attn1");
  self_qkv_ = Linear::loadFused(self, {"to_q", "to_k", "to_v"}, dim, dim, outputs);
  self_out_ = Linear::load(self.child("to_out.0"), dim, dim, inputs);
  self_norm_q_ = self.take("norm_q.weight", {dim}, outputs);
  self_norm_k_ = self.take("norm_k.weight", {dim}, outputs);

  const LayerLoader text = loader.child("attn2");
  text_q_ = Linear::load(text.child("to_q"), dim, dim, outputs);
  text_kv_ = Linear::loadFused(text, {"to_k", "to_v"}, dim, dim, outputs);
  text_out_ = Linear::load(text.child("to_out.0"), dim, dim, inputs);
  text_norm_q_ = text.take("norm_q.weight", {dim}, outputs);
  text_norm_k_ = text.take("norm_k.weight", {dim}, outputs);
  if (config.cross_attn_norm) {
    text_norm_weight_ = loader.inFloat32().take("norm2.weight", {dim});
    text_norm_bias_ = loader.inFloat32().take("norm2.bias", {dim});
  }

  ffn_up_ = Linear::load(loader.child("ffn.net.0.proj"), config.ffn_dim, dim, outputs);
  ffn_down_ = Linear::load(loader.child("ffn.net.2"), dim, config.ffn_dim, inputs);
}

at::Tensor TransformerBlock::splitHeads(const at::Tensor& x) const {
  return x.unflatten(-1, {config_.heads / ranks_.degree(), config_.head_dim});
}

at::Tensor TransformerBlock::joined(const Linear& layer, const at::Tensor& x) const {
  return ranks_.rowLinear(x, layer.weight, layer.bias);
}

TextKeyValue TransformerBlock::textKeyValue(const at::Tensor& projected_text) const {
  const auto parts = text_kv_(projected_text).chunk(2, -1);
  return {splitHeads(ranks_.rmsNorm({parts[0]}, {text_norm_k_}, config_.eps)[0]), splitHeads(parts[1]).contiguous()};
}

at::Tensor TransformerBlock::attendSelf(const at::Tensor& x, const BlockInputs& inputs) const {
  const auto parts = self_qkv_(x).chunk(3, -1);
  const AttentionToValues attention = inputs.self_attention(splitHeads(parts[2]));
  const auto normed = ranks_.rmsNorm({parts[0], parts[1]}, {self_norm_q_, self_norm_k_}, config_.eps);
  const at::Tensor query = rotate(splitHeads(normed[0]), inputs.rotation);
  const at::Tensor key = rotate(splitHeads(normed[1]), inputs.rotation);
  return joined(self_out_, attention(query, key).flatten(2));
}

at::Tensor TransformerBlock::attendText(const at::Tensor& x, const BlockInputs& inputs) const {
  const at::Tensor query = splitHeads(ranks_.rmsNorm({text_q_(x)}, {text_norm_q_}, config_.eps)[0]);
  return joined(text_out_, attend(query, inputs.text.key, inputs.text.value, inputs.text_bias).flatten(2));
}

at::Tensor TransformerBlock::forward(at::Tensor x, const BlockInputs& inputs) const {
  const at::Tensor modulation = modulation_table_.add(inputs.modulation);
  const auto row = [&](ModulationRow index) { return modulation.select(2, index); };

  at::Tensor normed = scaledNorm(x, row(kScale).add(1), row(kShift), config_.eps);
  x = gatedSum(x, attendSelf(normed, inputs), row(kGate));

  normed = config_.cross_attn_norm ? affineNorm(x, text_norm_weight_, text_norm_bias_, config_.eps) : x;
  x = x.add(attendText(normed, inputs));

  normed = scaledNorm(x, row(kFfnScale).add(1), row(kFfnShift), config_.eps);
  return gatedSum(x, joined(ffn_down_, ffn_up_.thenGelu(normed)), row(kFfnGate));
}

}  // namespace latentd::stages::wan
