#include "stages/schedulers/flow_match_euler.h"

#include <ATen/ops/empty.h>

#include <vector>

#include "runtime/base/check.h"
#include "stages/schedulers/sigmas.h"

namespace latentd::stages {

void FlowMatchEulerScheduler::setTimesteps(int64_t steps) {
  LATENTD_CHECK(steps >= 1, "a schedule has at least one step");
  const double train = static_cast<double>(config_.train_timesteps);
  // The training schedule is float32.
  const double highest = shiftSigma(config_.shift, 1.0F);
  const double lowest = shiftSigma(config_.shift, 1.0F / static_cast<float>(config_.train_timesteps));

  timesteps_ = at::empty({steps}, at::kFloat);
  sigmas_ = at::empty({steps + 1}, at::kFloat);
  const std::vector<double> points = linearSpace(highest * train, lowest * train, steps);
  for (int64_t i = 0; i < steps; ++i) {
    const auto sigma = static_cast<float>(shiftSigma(config_.shift, points[i] / train));
    sigmas_.mutable_data_ptr<float>()[i] = sigma;
    timesteps_.mutable_data_ptr<float>()[i] = sigma * static_cast<float>(config_.train_timesteps);
  }
  sigmas_.mutable_data_ptr<float>()[steps] = 0.0F;
  index_ = 0;
}

at::Tensor FlowMatchEulerScheduler::step(const at::Tensor& model_output, const at::Tensor& sample) {
  LATENTD_CHECK(timesteps_.defined() && index_ < timesteps_.size(0), "a step beyond the schedule");
  const at::Tensor delta = sigmas_[index_ + 1].sub(sigmas_[index_]);
  ++index_;
  return sample.to(at::kFloat).add(delta.mul(model_output)).to(model_output.scalar_type());
}

}  // namespace latentd::stages
