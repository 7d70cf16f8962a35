#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <variant>

#include <ATen/core/Tensor.h>

#include "runtime/base/status.h"

namespace latentd::stages {

// Options of UniPCMultistepScheduler that have an effect with flow sigmas.
struct UniPcConfig {
  int64_t train_timesteps = 1000;
  double flow_shift = 1.0;
  int64_t solver_order = 2;
  bool bh1 = false;  // solver_type "bh1" instead of "bh2"
  bool lower_order_final = true;
  bool final_sigma_zero = true;  // final_sigmas_type "zero" instead of "sigma_min"
  std::set<int64_t> disable_corrector;
};

// Options of FlowMatchEulerDiscreteScheduler.
struct FlowMatchEulerConfig {
  int64_t train_timesteps = 1000;
  double shift = 1.0;
};

using SchedulerConfig = std::variant<UniPcConfig, FlowMatchEulerConfig>;

// Reads scheduler_config.json. Refuses, by name, other classes and options that would change the result.
StatusOr<SchedulerConfig> readSchedulerConfig(const std::string& path);

// Walks the latents of one job from noise to data, element by element: a part of them, in any layout, goes the way that
// it goes among the rest. Owner: one job. Thread: one. States: made -> setTimesteps -> step() once per timestep, in
// order; setTimesteps begins again. Failure: one step too many aborts (a bug of the caller).
class Scheduler {
 public:
  virtual ~Scheduler() = default;
  // steps >= 1.
  virtual void setTimesteps(int64_t steps) = 0;
  // What the model is told at each step, on the CPU: int64 or float32, as the reference has it.
  const at::Tensor& timesteps() const { return timesteps_; }
  // One more than timesteps, float32, on the CPU.
  const at::Tensor& sigmas() const { return sigmas_; }
  // The sample of the next step. The dtypes of sample and result are the reference's.
  virtual at::Tensor step(const at::Tensor& model_output, const at::Tensor& sample) = 0;

 protected:
  at::Tensor timesteps_;
  at::Tensor sigmas_;
};

// The checkpoint's own shift of the noise schedule.
double flowShift(const SchedulerConfig& config);

// flow_shift replaces the checkpoint's.
std::unique_ptr<Scheduler> makeScheduler(const SchedulerConfig& config, std::optional<double> flow_shift);

}  // namespace latentd::stages
