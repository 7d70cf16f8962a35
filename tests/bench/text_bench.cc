// Prompt to embeddings with a checkpoint, timed as tests/bench/text_reference.py times diffusers'. A run encodes the
// prompt and the empty negative prompt, without the cache. Prints one JSON object.
//
//   text_bench --model DIR [--prompt TEXT] [--threads 2] [--repeats 20] [--dtype float32]

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <string>
#include <vector>

#include "stages/text/text_encoder_stage.h"

namespace latentd::stages {
namespace {

struct Arguments {
  std::string model;
  std::string prompt = "A cat walks slowly along a quiet beach at sunset, cinematic lighting.";
  int threads = 2;
  int repeats = 20;
  std::string dtype = "float32";
};

class NoContext final : public RunContext {
 public:
  Status beginStep(uint32_t, uint32_t) override { return absl::OkStatus(); }
  void finishStep(uint32_t, uint32_t) override {}
  FrameSink* frames() override { return nullptr; }
};

// Milliseconds of each call of `work`, sorted.
template <class Work>
std::vector<double> timed(int repeats, Work work) {
  std::vector<double> milliseconds;
  for (int i = 0; i < repeats; ++i) {
    const auto start = std::chrono::steady_clock::now();
    work();
    milliseconds.push_back(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count());
  }
  std::sort(milliseconds.begin(), milliseconds.end());
  return milliseconds;
}

Status run(const Arguments& arguments) {
  at::set_num_threads(arguments.threads);
  LoadContext load;
  load.model_dir = arguments.model;
  load.dtype = parseDType(arguments.dtype).value_or(DType::kInvalid);
  load.options = {{"negative_cache", "0"}};
  TextEncoderStage stage;
  LATENTD_RETURN_IF_ERROR(stage.load(load));
  LATENTD_RETURN_IF_ERROR(stage.warmUp());
  LATENTD_ASSIGN_OR_RETURN(const Tokenizer tokenizer, Tokenizer::load(arguments.model + "/tokenizer"));
  SamplingParameters job;
  job.prompt = arguments.prompt;
  job.guidance_scale = 5;
  NoContext context;
  Status status;
  const std::clock_t processor_before = std::clock();
  const auto encode = timed(arguments.repeats, [&] {
    if (status.ok()) status = stage.run("encode", job, TensorTree(), context).status();
  });
  const double processor_ms =
      1e3 * static_cast<double>(std::clock() - processor_before) / CLOCKS_PER_SEC / arguments.repeats;
  LATENTD_RETURN_IF_ERROR(status);
  LATENTD_ASSIGN_OR_RETURN(const std::string cleaned, cleanPrompt(job.prompt, PromptCleaning::kFtfy));
  const auto clean = timed(arguments.repeats, [&] { (void)cleanPrompt(job.prompt, PromptCleaning::kFtfy); });
  const auto tokenize = timed(arguments.repeats, [&] { (void)tokenizer.encode(cleaned, 512); });
  fmt::print(
      "{{\"what\": \"latentd\", \"dtype\": \"{}\", \"threads\": {}, \"best_ms\": {:.3f}, \"median_ms\": {:.3f}, "
      "\"processor_ms\": {:.3f}, \"clean_ms\": {:.4f}, \"tokenize_ms\": {:.4f}}}\n",
      arguments.dtype, arguments.threads, encode.front(), encode[encode.size() / 2], processor_ms,
      clean[clean.size() / 2], tokenize[tokenize.size() / 2]);
  return absl::OkStatus();
}

}  // namespace
}  // namespace latentd::stages

int main(int argc, char** argv) {
  latentd::stages::Arguments arguments;
  CLI::App app{"Times a text encoder."};
  app.add_option("--model", arguments.model, "a diffusers directory")->required();
  app.add_option("--prompt", arguments.prompt);
  app.add_option("--threads", arguments.threads)->check(CLI::PositiveNumber);
  app.add_option("--repeats", arguments.repeats)->check(CLI::PositiveNumber);
  app.add_option("--dtype", arguments.dtype)->check(CLI::IsMember({"float32", "bfloat16", "float16"}));
  CLI11_PARSE(app, argc, argv);
  const latentd::Status status = latentd::stages::run(arguments);
  if (!status.ok()) fmt::print(stderr, "{}\n", status.ToString());
  return status.ok() ? 0 : 1;
}
