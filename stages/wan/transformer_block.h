#pragma once

#include <ATen/core/Tensor.h>

#include "mesh/tensor_parallel.h"
#include "stages/wan/attention.h"
#include "stages/wan/layers.h"
#include "stages/wan/transformer_config.h"
#include "stages/weights/layer_loader.h"

namespace latentd::stages::wan {

// Keys and values of the text for one block's cross-attention; they do not change over the steps of a job.
struct TextKeyValue {
  at::Tensor key;    // [B, tokens, heads of this rank, head_dim]
  at::Tensor value;  // the same
};

// What the tokens see besides themselves.
struct BlockInputs {
  const at::Tensor& modulation;  // [B or 1, S or 1, 6, dim], float32, without the block's own table
  const at::Tensor& rotation;    // RopeTable::rotation
  const TextKeyValue& text;
  const at::Tensor& text_bias;  // of the text's keys, see attend()
  const SelfAttention& self_attention;
};

// One block of WanTransformer3DModel: modulated self-attention, cross-attention to the text, modulated feed-forward.
// Owner: the transformer. Thread: any, immutable. Failure: may throw c10::Error.
class TransformerBlock {
 public:
  // Problems of the weights stick to the loader's reader. ranks: they divide the heads and the feed-forward's features,
  // and each takes no more than its part of the weights.
  TransformerBlock(const TransformerConfig& config, const LayerLoader& loader, const mesh::TensorParallel& ranks);

  TextKeyValue textKeyValue(const at::Tensor& projected_text) const;
  // x: [B or 1, S, dim], consumed; a batch of 1 becomes the text's batch at the cross-attention.
  at::Tensor forward(at::Tensor x, const BlockInputs& inputs) const;

 private:
  at::Tensor attendSelf(const at::Tensor& x, const BlockInputs& inputs) const;
  at::Tensor attendText(const at::Tensor& x, const BlockInputs& inputs) const;
  at::Tensor splitHeads(const at::Tensor& x) const;
  // Of layers whose inputs are divided over the ranks.
  at::Tensor joined(const Linear& layer, const at::Tensor& x) const;

  TransformerConfig config_;
  mesh::TensorParallel ranks_;
  at::Tensor modulation_table_;  // [1, 1, 6, dim], float32
  Linear self_qkv_;
  Linear self_out_;
  at::Tensor self_norm_q_;  // over all heads together, those of other ranks included
  at::Tensor self_norm_k_;
  Linear text_q_;
  Linear text_kv_;
  Linear text_out_;
  at::Tensor text_norm_q_;
  at::Tensor text_norm_k_;
  at::Tensor text_norm_weight_;  // float32; undefined without cross_attn_norm
  at::Tensor text_norm_bias_;
  Linear ffn_up_;
  Linear ffn_down_;
};

}  // namespace latentd::stages::wan
