#include "mesh/tensor_parallel.h"

#include <ATen/ops/linear.h>
#include <ATen/ops/rms_norm.h>
#include <ATen/ops/stack.h>

#include "mesh/collectives.h"
#include "runtime/base/check.h"

namespace latentd::mesh {

TensorParallel TensorParallel::planned(int64_t degree) {
  TensorParallel ranks;
  ranks.degree_ = degree;
  return ranks;
}

ProcessGroup& TensorParallel::group() const {
  LATENTD_CHECK(group_ != nullptr, "ranks that are only planned do not compute");
  return *group_;
}

at::Tensor TensorParallel::rowLinear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) const {
  if (degree() == 1) return at::linear(x, weight, bias);
  at::Tensor sum = at::linear(x, weight);
  allReduceSum_(group(), {sum});
  return sum.add_(bias);
}

std::vector<at::Tensor> TensorParallel::rmsNorm(const std::vector<at::Tensor>& x,
                                                const std::vector<at::Tensor>& weights, double eps) const {
  std::vector<at::Tensor> normed;
  if (degree() == 1) {
    for (size_t i = 0; i < x.size(); ++i)
      normed.push_back(at::rms_norm(x[i], {x[i].size(-1)}, weights[i], eps));
    return normed;
  }
  std::vector<at::Tensor> squares;
  for (const at::Tensor& features : x)
    squares.push_back(features.to(at::kFloat).square().mean(-1, true));
  at::Tensor means = at::stack(squares);
  allReduceSum_(group(), {means});
  means.div_(degree()).add_(eps).rsqrt_();
  for (size_t i = 0; i < x.size(); ++i) {
    // As the kernel of one rank: in float32, rounded once.
    normed.push_back(x[i].to(at::kFloat).mul(means[static_cast<int64_t>(i)]).mul_(weights[i]).to(x[i].scalar_type()));
  }
  return normed;
}

}  // namespace latentd::mesh
