#include "stages/schedulers/scheduler.h"

#include <fmt/format.h>

#include "stages/schedulers/flow_match_euler.h"
#include "stages/schedulers/unipc.h"
#include "stages/weights/model_config.h"

namespace latentd::stages {
namespace {

UniPcConfig readUniPc(ModelConfig& config) {
  UniPcConfig read;
  read.train_timesteps = config.positive("num_train_timesteps", read.train_timesteps);
  read.flow_shift = config.number("flow_shift", read.flow_shift);
  if (read.flow_shift <= 0) config.refuse("flow_shift", "a number above 0");
  read.solver_order = config.positive("solver_order", read.solver_order);
  const std::string solver = config.text("solver_type", "bh2");
  // The reference turns the names of other solvers' types into bh2.
  if (solver != "bh1" && solver != "bh2" && solver != "midpoint" && solver != "heun" && solver != "logrho") {
    config.refuse("solver_type", "bh1 or bh2");
  }
  read.bh1 = solver == "bh1";
  read.lower_order_final = config.flag("lower_order_final", read.lower_order_final);
  const std::string final_sigmas = config.text("final_sigmas_type", "zero");
  if (final_sigmas != "zero" && final_sigmas != "sigma_min") config.refuse("final_sigmas_type", "zero or sigma_min");
  read.final_sigma_zero = final_sigmas == "zero";
  if (config.has("disable_corrector")) {
    for (double step : config.numbers("disable_corrector"))
      read.disable_corrector.insert(static_cast<int64_t>(step));
  }
  if (!config.flag("use_flow_sigmas", false)) config.refuse("use_flow_sigmas", "true (flow matching)");
  if (config.text("prediction_type", "epsilon") != "flow_prediction") {
    config.refuse("prediction_type", "flow_prediction");
  }
  if (!config.flag("predict_x0", true)) config.refuse("predict_x0", "true");
  for (const char* key : {"thresholding", "use_karras_sigmas", "use_exponential_sigmas", "use_beta_sigmas",
                          "use_dynamic_shifting", "shift_terminal", "solver_p"}) {
    config.refuseIfSet(key, "false or null: not implemented");
  }
  // Without effect once use_flow_sigmas is on and what was refused above is off.
  config.ignore({"beta_start", "beta_end", "beta_schedule", "trained_betas", "dynamic_thresholding_ratio",
                 "sample_max_value", "timestep_spacing", "steps_offset", "rescale_betas_zero_snr", "time_shift_type",
                 "sigma_min", "sigma_max"});
  return read;
}

FlowMatchEulerConfig readFlowMatchEuler(ModelConfig& config) {
  FlowMatchEulerConfig read;
  read.train_timesteps = config.positive("num_train_timesteps", read.train_timesteps);
  read.shift = config.number("shift", read.shift);
  if (read.shift <= 0) config.refuse("shift", "a number above 0");
  for (const char* key : {"use_dynamic_shifting", "invert_sigmas", "shift_terminal", "use_karras_sigmas",
                          "use_exponential_sigmas", "use_beta_sigmas", "stochastic_sampling"}) {
    config.refuseIfSet(key, "false or null: not implemented");
  }
  // Only dynamic shifting reads these.
  config.ignore({"base_shift", "max_shift", "base_image_seq_len", "max_image_seq_len", "time_shift_type"});
  return read;
}

}  // namespace

StatusOr<SchedulerConfig> readSchedulerConfig(const std::string& path) {
  LATENTD_ASSIGN_OR_RETURN(ModelConfig config, ModelConfig::read(path));
  const std::string class_name = config.text("_class_name");
  SchedulerConfig read;
  if (class_name == "UniPCMultistepScheduler") {
    read = readUniPc(config);
  } else if (class_name == "FlowMatchEulerDiscreteScheduler") {
    read = readFlowMatchEuler(config);
  } else {
    config.refuse("_class_name", "UniPCMultistepScheduler or FlowMatchEulerDiscreteScheduler");
  }
  LATENTD_RETURN_IF_ERROR(config.finish());
  return read;
}

double flowShift(const SchedulerConfig& config) {
  const auto* unipc = std::get_if<UniPcConfig>(&config);
  return unipc != nullptr ? unipc->flow_shift : std::get<FlowMatchEulerConfig>(config).shift;
}

std::unique_ptr<Scheduler> makeScheduler(const SchedulerConfig& config, std::optional<double> flow_shift) {
  if (const auto* unipc = std::get_if<UniPcConfig>(&config)) {
    UniPcConfig effective = *unipc;
    effective.flow_shift = flow_shift.value_or(effective.flow_shift);
    return std::make_unique<UniPcScheduler>(effective);
  }
  FlowMatchEulerConfig effective = std::get<FlowMatchEulerConfig>(config);
  effective.shift = flow_shift.value_or(effective.shift);
  return std::make_unique<FlowMatchEulerScheduler>(effective);
}

}  // namespace latentd::stages
