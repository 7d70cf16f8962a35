#include "stages/wan/rope.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/complex.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/imag.h>
#include <ATen/ops/real.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/view_as_complex.h>
#include <ATen/ops/view_as_real.h>

#include <cmath>
#include <vector>

#include "runtime/base/check.h"
#include "stages/device/transfer.h"

namespace latentd::stages::wan {
namespace {

constexpr double kTheta = 10000.0;

}  // namespace

RopeTable::RopeTable(int64_t head_dim, int64_t max_length, at::Device device) {
  const int64_t spatial = 2 * (head_dim / 6);
  split_ = {head_dim - 2 * spatial, spatial, spatial};

  const int64_t pairs = head_dim / 2;
  at::Tensor cosines = at::empty({max_length, pairs}, at::kFloat);
  at::Tensor sines = at::empty({max_length, pairs}, at::kFloat);
  auto* cosine = cosines.mutable_data_ptr<float>();
  auto* sine = sines.mutable_data_ptr<float>();
  for (int64_t position = 0; position < max_length; ++position) {
    for (const int64_t channels : split_) {
      for (int64_t i = 0; i < channels; i += 2) {
        const double frequency = 1.0 / std::pow(kTheta, static_cast<double>(i) / static_cast<double>(channels));
        const double angle = static_cast<double>(position) * frequency;
        *cosine++ = static_cast<float>(std::cos(angle));
        *sine++ = static_cast<float>(std::sin(angle));
      }
    }
  }
  table_ = toDevice(at::complex(cosines, sines), device);
}

at::Tensor RopeTable::rotation(const Grid& grid) const {
  std::vector<at::Tensor> axes;
  int64_t first = 0;
  for (size_t axis = 0; axis < grid.size(); ++axis) {
    LATENTD_CHECK(grid[axis] <= maxLength(), "more patches than rope_max_seq_len");
    const int64_t pairs = split_[axis] / 2;
    std::vector<int64_t> shape = {1, 1, 1, pairs};
    shape[axis] = grid[axis];
    axes.push_back(table_.slice(0, 0, grid[axis])
                       .slice(1, first, first + pairs)
                       .reshape(shape)
                       .expand({grid[0], grid[1], grid[2], pairs}));
    first += pairs;
  }
  return at::cat(axes, -1).reshape({grid[0] * grid[1] * grid[2], 1, first});
}

at::Tensor rotate(const at::Tensor& x, const at::Tensor& rotation) {
  const at::Tensor pairs = x.unflatten(-1, {-1, 2});
  if (x.scalar_type() == at::kFloat) {
    return at::view_as_real(at::view_as_complex(pairs).mul_(rotation)).flatten(-2);
  }
  // A third of the time of the products one by one.
  if (!x.is_cpu()) return rotate(x.to(at::kFloat), rotation).to(x.scalar_type());
  const at::Tensor cosine = at::real(rotation);
  const at::Tensor sine = at::imag(rotation);
  const at::Tensor first = pairs.select(-1, 0);
  const at::Tensor second = pairs.select(-1, 1);
  return at::stack({first.mul(cosine).sub(second.mul(sine)), first.mul(sine).add(second.mul(cosine))}, -1)
      .flatten(-2)
      .to(x.scalar_type());
}

}  // namespace latentd::stages::wan
