// VAE decode of a checkpoint, timed as tests/bench/vae_reference.py times diffusers'. Prints one JSON object.
//
//   vae_bench --model DIR [--frames 17] [--height 128] [--width 128] [--threads 2] [--repeats 5] [--device cpu]
//             [--dtype float32]
//
// tests/bench/random_checkpoint.py makes a DIR of a published model's sizes.

#include <ATen/Parallel.h>
#include <ATen/ops/randn.h>
#include <fmt/format.h>
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "mesh/scalar_type.h"
#include "stages/device/transfer.h"
#include "stages/vae/autoencoder_kl_wan.h"
#include "tests/bench/device_use.h"

namespace latentd::stages::vae {
namespace {

struct Arguments {
  std::string model;
  int64_t frames = 17;
  int64_t height = 128;
  int64_t width = 128;
  int threads = 2;
  int repeats = 5;
  std::string device = "cpu";
  std::string dtype = "float32";
};

struct Timing {
  double first_s = 0;  // until the first frame
  double total_s = 0;
};

// Of the process so far, in MiB.
double peakMemory() {
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

Timing decodeOnce(const AutoencoderKLWan& model, const at::Tensor& latents) {
  const auto start = std::chrono::steady_clock::now();
  const auto elapsed = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(); };
  Timing timing;
  auto decoding = model.decode(model.denormalise(latents));
  while (!decoding.done()) {
    toPinnedHost(decoding.next());
    if (timing.first_s != 0) continue;
    bench::waitForDevice(model.device().str());
    timing.first_s = elapsed();
  }
  bench::waitForDevice(model.device().str());
  timing.total_s = elapsed();
  return timing;
}

int run(const Arguments& arguments) {
  at::set_num_threads(arguments.threads);
  const DType dtype = parseDType(arguments.dtype).value_or(DType::kInvalid);
  auto model = AutoencoderKLWan::load(
      arguments.model + "/vae",
      {.half = VaeHalf::kDecoder, .dtype = toScalarType(dtype), .device = at::Device(arguments.device)});
  if (!model.ok()) {
    fmt::print(stderr, "{}\n", model.status().ToString());
    return 1;
  }
  const double loaded_mib = peakMemory();
  const VaeConfig& config = model->config();
  const int64_t scale = config.spatialFactor();
  const at::Tensor latents = toDevice(at::randn({1, config.z_dim, config.latentFrames(arguments.frames),
                                                 arguments.height / scale, arguments.width / scale}),
                                      model->device());
  const double cold_s = decodeOnce(*model, latents).total_s;  // makes the kernels for these sizes
  const double processor_before = processorSeconds();
  std::vector<Timing> timings;
  for (int i = 0; i < arguments.repeats; ++i)
    timings.push_back(decodeOnce(*model, latents));
  const double processor_s = (processorSeconds() - processor_before) / arguments.repeats;
  const auto less = [](const Timing& a, const Timing& b) { return a.total_s < b.total_s; };
  std::sort(timings.begin(), timings.end(), less);
  fmt::print(
      "{{\"what\": \"latentd\", \"device\": \"{}\", \"dtype\": \"{}\", \"frames\": {}, \"height\": {}, \"width\": {}, "
      "\"threads\": {}, "
      "\"cold_s\": {:.4f}, \"best_s\": {:.4f}, \"median_s\": {:.4f}, \"processor_s\": {:.4f}, "
      "\"first_frame_s\": {:.4f}, \"loaded_mib\": {:.0f}, \"peak_mib\": {:.0f}, "
      "\"device_peak_mib\": {}}}\n",
      arguments.device, arguments.dtype, arguments.frames, arguments.height, arguments.width, arguments.threads, cold_s,
      timings.front().total_s, timings[timings.size() / 2].total_s, processor_s, timings.front().first_s, loaded_mib,
      peakMemory(), bench::devicePeakMiB(arguments.device));
  return 0;
}

}  // namespace
}  // namespace latentd::stages::vae

int main(int argc, char** argv) {
  latentd::stages::vae::Arguments arguments;
  CLI::App app{"Times a VAE decode."};
  app.add_option("--model", arguments.model, "a diffusers directory")->required();
  app.add_option("--frames", arguments.frames, "1 + 4k")->check(CLI::PositiveNumber);
  app.add_option("--height", arguments.height, "pixels")->check(CLI::PositiveNumber);
  app.add_option("--width", arguments.width, "pixels")->check(CLI::PositiveNumber);
  app.add_option("--threads", arguments.threads)->check(CLI::PositiveNumber);
  app.add_option("--repeats", arguments.repeats)->check(CLI::PositiveNumber);
  app.add_option("--device", arguments.device, "cpu or cuda:N");
  app.add_option("--dtype", arguments.dtype)->check(CLI::IsMember({"float32", "bfloat16", "float16"}));
  CLI11_PARSE(app, argc, argv);
  return latentd::stages::vae::run(arguments);
}
