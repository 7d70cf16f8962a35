#pragma once

#include <array>
#include <cstdint>

#include <ATen/core/Tensor.h>

namespace latentd::stages::wan {

// Patches along frames, height and width.
using Grid = std::array<int64_t, 3>;

// Rotary position embedding over three axes: a head's channels are split into three runs of adjacent pairs, and each
// run turns by the position on its axis. Angles are computed in float64 and their sines and cosines rounded to float32.
// Owner: the transformer. Thread: any, immutable.
class RopeTable {
 public:
  // head_dim is even and at least 6; positions 0..max_length-1 on each axis.
  RopeTable(int64_t head_dim, int64_t max_length, at::Device device = at::kCPU);

  // Channels of a head that turn with frames, height and width.
  const std::array<int64_t, 3>& split() const { return split_; }
  int64_t maxLength() const { return table_.size(0); }
  // [max_length, head_dim / 2], complex64: cos + i sin of every pair, for the same position on all three axes.
  const at::Tensor& table() const { return table_; }
  // [grid tokens, 1, head_dim / 2], complex64, in token order (frames, height, width). No axis exceeds maxLength().
  at::Tensor rotation(const Grid& grid) const;

 private:
  std::array<int64_t, 3> split_;
  at::Tensor table_;
};

// x: [B, S, heads, head_dim], contiguous; turns adjacent pairs by rotation [S, 1, head_dim / 2]. Float32 is turned in
// place, as complex numbers; other types in float32, rounded once at the end, and on a CPU by the reference's own
// products.
at::Tensor rotate(const at::Tensor& x, const at::Tensor& rotation);

}  // namespace latentd::stages::wan
