#include "stages/schedulers/unipc.h"

#include <ATen/ops/einsum.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linalg_solve.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "runtime/base/check.h"
#include "stages/schedulers/sigmas.h"

namespace latentd::stages {
namespace {

// The first noise level must stay below 1: at 1 the logarithm of alpha is -inf.
constexpr double kSigmaMargin = 1e-6;

at::Tensor complement(const at::Tensor& sigma) { return sigma.neg().add(1); }

}  // namespace

struct UniPcScheduler::Interval {
  at::Tensor ratio;    // sigma_to / sigma_from
  at::Tensor alpha;    // of `to`
  at::Tensor h_phi_1;  // expm1(-h)
  at::Tensor b_h;      // B(h)
  at::Tensor weights;  // R, [order, order]
  at::Tensor targets;  // b, [order]
  at::Tensor slopes;   // D1s, [B, order - 1, ...]; undefined for order 1

  // The first-order solution from `sample` with the data prediction at `from`.
  at::Tensor linear(const at::Tensor& sample, const at::Tensor& data) const {
    return ratio.mul(sample).sub(alpha.mul(h_phi_1).mul(data));
  }
  at::Tensor scaled(const at::Tensor& residual) const { return alpha.mul(b_h).mul(residual); }
  // The sum over k of rho[k] * slopes[:, k].
  at::Tensor combine(const at::Tensor& rho) const {
    if (slopes.is_cpu()) return at::einsum("k,bkc...->bc...", {rho, slopes});
    // rho is on the host, and its elements go to the device as arguments of kernels: nothing waits for a copy.
    at::Tensor sum = rho[0].mul(slopes.select(1, 0));
    for (int64_t k = 1; k < rho.size(0); ++k)
      sum = sum.add(rho[k].mul(slopes.select(1, k)));
    return sum;
  }
};

void UniPcScheduler::setTimesteps(int64_t steps) {
  LATENTD_CHECK(steps >= 1, "a schedule has at least one step");
  std::vector<double> levels = linearSpace(1.0, 1.0 / static_cast<double>(config_.train_timesteps), steps + 1);
  levels.pop_back();
  for (double& level : levels)
    level = shiftSigma(config_.flow_shift, level);
  if (std::fabs(levels[0] - 1) < kSigmaMargin) levels[0] -= kSigmaMargin;

  timesteps_ = at::empty({steps}, at::kLong);
  sigmas_ = at::empty({steps + 1}, at::kFloat);
  for (int64_t i = 0; i < steps; ++i) {
    // Truncated, not rounded: the first timestep is 999.
    timesteps_.mutable_data_ptr<int64_t>()[i] =
        static_cast<int64_t>(levels[i] * static_cast<double>(config_.train_timesteps));
    sigmas_.mutable_data_ptr<float>()[i] = static_cast<float>(levels[i]);
  }
  sigmas_.mutable_data_ptr<float>()[steps] = config_.final_sigma_zero ? 0.0F : static_cast<float>(levels.back());

  index_ = 0;
  order_ = 0;
  history_ = 0;
  data_.clear();
  last_sample_ = at::Tensor();
}

at::Tensor UniPcScheduler::lambda(int64_t index) const {
  const at::Tensor sigma = sigmas_[index];
  return complement(sigma).log().sub(sigma.log());
}

UniPcScheduler::Interval UniPcScheduler::interval(int64_t from, int64_t to, int64_t order) const {
  const at::Tensor lambda_from = lambda(from);
  const at::Tensor h = lambda(to).sub(lambda_from);
  const at::Tensor hh = h.neg();  // data prediction

  std::vector<at::Tensor> ratios;
  std::vector<at::Tensor> slopes;
  for (int64_t i = 1; i < order; ++i) {
    const at::Tensor ratio = lambda(from - i).sub(lambda_from).div(h);
    slopes.push_back(data_[data_.size() - 1 - i].sub(data_.back()).div(ratio));
    ratios.push_back(ratio);
  }
  ratios.push_back(at::ones({}, at::kFloat));
  const at::Tensor nodes = at::stack(ratios);

  Interval result;
  result.ratio = sigmas_[to].div(sigmas_[from]);
  result.alpha = complement(sigmas_[to]);
  result.h_phi_1 = hh.expm1();
  result.b_h = config_.bh1 ? hh : hh.expm1();
  if (!slopes.empty()) result.slopes = at::stack(slopes, 1);

  std::vector<at::Tensor> rows;
  std::vector<at::Tensor> targets;
  at::Tensor h_phi_k = result.h_phi_1.div(hh).sub(1);
  double factorial = 1;
  for (int64_t i = 1; i <= order; ++i) {
    rows.push_back(nodes.pow(i - 1));
    targets.push_back(h_phi_k.mul(factorial).div(result.b_h));
    factorial *= static_cast<double>(i + 1);
    h_phi_k = h_phi_k.div(hh).sub(1 / factorial);
  }
  result.weights = at::stack(rows);
  result.targets = at::stack(targets);
  return result;
}

at::Tensor UniPcScheduler::predict(const at::Tensor& sample) const {
  const Interval step = interval(index_, index_ + 1, order_);
  at::Tensor next = step.linear(sample, data_.back());
  if (order_ == 1) return next;
  const int64_t last = order_ - 1;
  // Order 2 has a closed form.
  const at::Tensor rho =
      order_ == 2 ? at::full({1}, 0.5, at::kFloat)
                  : at::linalg_solve(step.weights.slice(0, 0, last).slice(1, 0, last), step.targets.slice(0, 0, last));
  return next.sub(step.scaled(step.combine(rho)));
}

at::Tensor UniPcScheduler::correct(const at::Tensor& data) const {
  const Interval step = interval(index_ - 1, index_, order_);
  const at::Tensor base = step.linear(last_sample_, data_.back());
  const at::Tensor change = data.sub(data_.back());
  if (order_ == 1) return base.sub(step.scaled(change.mul(at::full({}, 0.5, at::kFloat))));
  const at::Tensor rho = at::linalg_solve(step.weights, step.targets);
  const at::Tensor past = step.combine(rho.slice(0, 0, order_ - 1));
  return base.sub(step.scaled(past.add(rho[order_ - 1].mul(change))));
}

at::Tensor UniPcScheduler::step(const at::Tensor& model_output, const at::Tensor& sample) {
  const int64_t steps = timesteps_.defined() ? timesteps_.size(0) : 0;
  LATENTD_CHECK(index_ < steps, "a step beyond the schedule");
  // A 0-dim float32 times bfloat16 is bfloat16: in bfloat16 this product is rounded, the difference is not.
  const at::Tensor data = sample.sub(sigmas_[index_].mul(model_output));
  const bool corrects = index_ > 0 && !config_.disable_corrector.contains(index_ - 1);
  const at::Tensor corrected = corrects ? correct(data) : sample;

  data_.push_back(data);
  if (static_cast<int64_t>(data_.size()) > config_.solver_order) data_.pop_front();
  order_ = config_.solver_order;
  if (config_.lower_order_final) order_ = std::min(order_, steps - index_);
  order_ = std::min(order_, history_ + 1);

  last_sample_ = corrected;
  at::Tensor next = predict(corrected);
  history_ = std::min(history_ + 1, config_.solver_order);
  ++index_;
  return next;
}

}  // namespace latentd::stages
