// Denoising with a checkpoint, timed as tests/bench/denoise_reference.py times diffusers'. Prints one JSON object.
//
//   denoise_bench --model DIR [--frames 17] [--height 128] [--width 128] [--threads 2] [--steps 10] [--repeats 3]
//                 [--device cpu] [--dtype float32] [--guidance 5] [--batching auto] [--text-rows 24]
//
// tests/bench/random_checkpoint.py makes a DIR of a published model's sizes.

#include <ATen/Parallel.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include "stages/device/transfer.h"
#include "stages/step_timer.h"
#include "stages/wan/denoiser.h"
#include "tests/bench/device_use.h"

namespace latentd::stages {
namespace {

struct Arguments {
  std::string model;
  SamplingParameters job;
  int threads = 2;
  int repeats = 3;
  std::string device = "cpu";
  std::string dtype = "float32";
  std::string batching = "auto";
  int64_t text_rows = 24;  // of the prompt; the negative prompt has one
};

constexpr int64_t kContextRows = 512;

using Seconds = std::chrono::duration<double>;
using SteadyClock = std::chrono::steady_clock;

// Notes how long each step took.
class TimingContext final : public RunContext {
 public:
  Status beginStep(uint32_t step, uint32_t) override {
    timer_.begin(step, SteadyClock::now());
    return absl::OkStatus();
  }
  void finishStep(uint32_t step, uint32_t) override {
    steps_.push_back(timer_.finish(step, SteadyClock::now()).count());
  }
  FrameSink* frames() override { return nullptr; }
  std::vector<double>& steps() { return steps_; }

 private:
  StepTimer timer_;
  std::vector<double> steps_;
};

double peakMemoryMiB() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024;
}

double processorSeconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) { return static_cast<double>(time.tv_sec) + 1e-6 * time.tv_usec; };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

at::Tensor text(int64_t rows, int64_t dim) {
  at::Tensor padded = at::zeros({1, kContextRows, dim});
  padded.narrow(1, 0, rows).copy_(at::randn({1, rows, dim}));
  return padded;
}

Status run(const Arguments& arguments) {
  at::set_num_threads(arguments.threads);
  WanDenoiser denoiser;
  bench::waitForDevice(arguments.device);  // its context is made, which is no part of a load
  const auto begun = SteadyClock::now();
  LATENTD_RETURN_IF_ERROR(denoiser.load({.model_dir = arguments.model,
                                         .device = arguments.device,
                                         .dtype = parseDType(arguments.dtype).value_or(DType::kInvalid),
                                         .options = {{"guidance_batching", arguments.batching}}}));
  bench::waitForDevice(arguments.device);
  const double load_s = Seconds(SteadyClock::now() - begun).count();
  const double loaded_mib = peakMemoryMiB();
  const at::Device device(arguments.device);
  TensorTree::Dict inputs;
  inputs.entries = {
      {"prompt_embeds", TensorTree::Value(toDevice(text(arguments.text_rows, denoiser.textDim()), device))},
      {"negative_prompt_embeds", TensorTree::Value(toDevice(text(1, denoiser.textDim()), device))}};
  const TensorTree given = TensorTree::Value(std::move(inputs));
  TimingContext warm_up;
  LATENTD_RETURN_IF_ERROR(denoiser.run("denoise", arguments.job, given, warm_up).status());

  TimingContext context;
  const double processor_before = processorSeconds();
  const auto start = SteadyClock::now();
  for (int i = 0; i < arguments.repeats; ++i) {
    LATENTD_RETURN_IF_ERROR(denoiser.run("denoise", arguments.job, given, context).status());
  }
  const double job_s = Seconds(SteadyClock::now() - start).count() / arguments.repeats;
  const double processor_s = (processorSeconds() - processor_before) / arguments.repeats / arguments.job.steps;
  std::vector<double>& steps = context.steps();
  std::sort(steps.begin(), steps.end());
  fmt::print(
      "{{\"what\": \"latentd\", \"device\": \"{}\", \"dtype\": \"{}\", \"frames\": {}, \"height\": {}, \"width\": {}, "
      "\"guidance\": {}, "
      "\"batching\": \"{}\", \"threads\": {}, \"best_step_s\": {:.5f}, \"median_step_s\": {:.5f}, "
      "\"processor_step_s\": {:.5f}, \"job_s\": {:.4f}, \"loaded_mib\": {:.0f}, \"peak_mib\": {:.0f}, "
      "\"load_s\": {:.3f}, \"weights_mib\": {}, \"device_peak_mib\": {}}}\n",
      arguments.device, arguments.dtype, arguments.job.frames, arguments.job.height, arguments.job.width,
      arguments.job.guidance_scale, arguments.batching, arguments.threads, steps.front(), steps[steps.size() / 2],
      processor_s, job_s, loaded_mib, peakMemoryMiB(), load_s, denoiser.weightBytes() >> 20,
      bench::devicePeakMiB(arguments.device));
  return absl::OkStatus();
}

}  // namespace
}  // namespace latentd::stages

int main(int argc, char** argv) {
  latentd::stages::Arguments arguments;
  latentd::stages::SamplingParameters& job = arguments.job;
  job.frames = 17;
  job.height = 128;
  job.width = 128;
  job.steps = 10;
  job.guidance_scale = 5.0;
  CLI::App app{"Times the steps of a denoiser."};
  app.add_option("--model", arguments.model, "a diffusers directory")->required();
  app.add_option("--frames", job.frames, "1 + 4k")->check(CLI::PositiveNumber);
  app.add_option("--height", job.height, "pixels")->check(CLI::PositiveNumber);
  app.add_option("--width", job.width, "pixels")->check(CLI::PositiveNumber);
  app.add_option("--steps", job.steps, "of one job")->check(CLI::PositiveNumber);
  app.add_option("--guidance", job.guidance_scale, "1: none")->check(CLI::PositiveNumber);
  app.add_option("--threads", arguments.threads)->check(CLI::PositiveNumber);
  app.add_option("--repeats", arguments.repeats, "jobs")->check(CLI::PositiveNumber);
  app.add_option("--text-rows", arguments.text_rows, "tokens of the prompt")->check(CLI::Range(1, 512));
  app.add_option("--device", arguments.device, "cpu or cuda:N");
  app.add_option("--dtype", arguments.dtype)->check(CLI::IsMember({"float32", "bfloat16", "float16"}));
  app.add_option("--batching", arguments.batching)->check(CLI::IsMember({"auto", "batched", "separate"}));
  CLI11_PARSE(app, argc, argv);
  const latentd::Status status = latentd::stages::run(arguments);
  if (!status.ok()) fmt::print(stderr, "{}\n", status.ToString());
  return status.ok() ? 0 : 1;
}
