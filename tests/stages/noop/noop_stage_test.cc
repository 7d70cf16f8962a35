#include "stages/noop/noop_stage.h"

#include <ATen/ops/zeros.h>

#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "tests/stages/cuda_device.h"
#include "tests/support/catch.h"

namespace latentd::stages {
namespace {

using Options = std::map<std::string, std::string>;

class CollectedFrames final : public FrameSink {
 public:
  Status write(const at::Tensor& frames) override {
    for (int64_t index = 0; index < frames.size(0); ++index) {
      levels.push_back(frames[index].mean().item().toDouble());
      CHECK(frames[index].sizes().vec() == std::vector<int64_t>{8, 16, 3});
    }
    return absl::OkStatus();
  }
  std::vector<double> levels;
};

class Context final : public RunContext {
 public:
  Status beginStep(uint32_t step, uint32_t) override {
    return step == stop_at ? Status(absl::CancelledError("stop")) : absl::OkStatus();
  }
  void finishStep(uint32_t, uint32_t) override { ++finished; }
  FrameSink* frames() override { return &sink; }

  uint32_t stop_at = UINT32_MAX;
  uint32_t finished = 0;
  CollectedFrames sink;
};

NoopStage loaded(const Options& options, const std::string& device = "cpu") {
  NoopStage stage;
  LoadContext context;
  context.device = device;
  context.options = options;
  REQUIRE(stage.load(context).ok());
  return stage;
}

SamplingParameters job(uint64_t seed = 3) {
  SamplingParameters parameters;
  parameters.prompt = "a red circle";
  parameters.frames = 4;
  parameters.width = 16;
  parameters.height = 8;
  parameters.steps = 2;
  parameters.seed = seed;
  return parameters;
}

TEST_CASE("noop: source, relay and sink pass one payload along", "[stages][noop]") {
  const char* dtype = GENERATE("float32", "bfloat16", "uint8", "bool", "int64");
  Context context;
  NoopStage source = loaded({{"bytes", "1000000"}, {"leaves", "3"}, {"dtype", dtype}, {"output_key", "a"}});
  const TensorTree made = source.run("source", job(), {}, context).value();
  uint64_t bytes = 0;
  made.forEachLeaf([&](const at::Tensor& leaf) { bytes += leaf.nbytes(); });
  CHECK(bytes <= 1000000);
  CHECK(bytes > 1000000 - 3 * 8);
  NoopStage relay = loaded({{"input_keys", "a"}, {"output_key", "b"}});
  const TensorTree relayed = relay.run("relay", job(), made, context).value();
  NoopStage sink = loaded({{"input_keys", "b"}});
  CHECK(sink.run("sink", job(), relayed, context).ok());
  CHECK(context.sink.levels.size() == 4);
  CHECK(context.sink.levels[1] == Approx(4.0 / 255));
  CHECK(context.finished == 3);
}

TEST_CASE("noop: a payload grows with the frames of its job", "[stages][noop]") {
  Context context;
  NoopStage source = loaded({{"bytes", "4"}, {"bytes_per_frame", "1000"}});
  for (const uint32_t frames : {1U, 9U}) {
    SamplingParameters parameters = job();
    parameters.frames = frames;
    const TensorTree made = source.run("source", parameters, {}, context).value();
    made.forEachLeaf([&](const at::Tensor& leaf) { CHECK(leaf.nbytes() == 4 + 1000 * frames); });
  }
}

TEST_CASE("noop: a payload of another job or with a hole is noticed", "[stages][noop]") {
  Context context;
  NoopStage stage = loaded({{"bytes", "400000"}});
  TensorTree made = stage.run("source", job(3), {}, context).value();
  CHECK(stage.run("relay", job(4), made, context).status().code() == absl::StatusCode::kDataLoss);
  made.forEachLeaf([](const at::Tensor& leaf) { leaf.slice(0, leaf.numel() - 1).fill_(0); });
  CHECK(stage.run("relay", job(3), made, context).status().code() == absl::StatusCode::kDataLoss);
  NoopStage careless = loaded({{"check", "false"}});
  CHECK(careless.run("relay", job(4), made, context).ok());
}

TEST_CASE("noop: on a device payloads stay there, and are checked without a wait of the host", "[stages][noop][cuda]") {
  if (!testing::hasCuda()) return;
  const char* dtype = GENERATE("float32", "bfloat16", "uint8", "bool", "int64");
  Context context;
  NoopStage source =
      loaded({{"bytes", "1000000"}, {"leaves", "3"}, {"dtype", dtype}, {"steps", "3"}}, testing::kCudaName);
  NoopStage sink = loaded({}, testing::kCudaName);
  const testing::HostNeverWaits guard;
  const TensorTree made = source.run("source", job(), {}, context).value();
  made.forEachLeaf([&](const at::Tensor& leaf) { CHECK(leaf.device() == testing::cudaDevice()); });
  const TensorTree relayed = sink.run("relay", job(), made, context).value();
  CHECK(sink.run("sink", job(), relayed, context).ok());
  CHECK(context.sink.levels.size() == 4);
  CHECK(context.finished == 5);
  made.forEachLeaf([](const at::Tensor& leaf) { leaf.slice(0, leaf.numel() - 1).fill_(0); });
  CHECK(sink.run("relay", job(), made, context).status().code() == absl::StatusCode::kDataLoss);
}

TEST_CASE("noop: steps come from the options or the job, and stop when told", "[stages][noop]") {
  Context context;
  REQUIRE(loaded({{"steps", "5"}}).run("source", job(), {}, context).ok());
  CHECK(context.finished == 5);
  context.finished = 0;
  REQUIRE(loaded({{"steps", "0"}}).run("source", job(), {}, context).ok());
  CHECK(context.finished == 2);
  context.finished = 0;
  context.stop_at = 3;
  CHECK(loaded({{"steps", "5"}}).run("source", job(), {}, context).status().code() == absl::StatusCode::kCancelled);
  CHECK(context.finished == 3);
}

TEST_CASE("noop: a step burns processor time", "[stages][noop]") {
  Context context;
  NoopStage stage = loaded({{"steps", "3"}, {"step_ms", "10"}});
  const std::clock_t before = std::clock();
  REQUIRE(stage.run("source", job(), {}, context).ok());
  CHECK(static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC >= 0.025);
}

TEST_CASE("noop: faults hit the step, and the jobs, that they name", "[stages][noop]") {
  Context context;
  NoopStage stage = loaded({{"steps", "4"}, {"fail_at_step", "2"}, {"only_prompt", "red"}});
  CHECK(stage.run("source", job(), {}, context).status().code() == absl::StatusCode::kInternal);
  CHECK(context.finished == 2);
  SamplingParameters blue = job();
  blue.prompt = "a blue circle";
  CHECK(stage.run("source", blue, {}, context).ok());
  NoopStage unloadable;
  LoadContext load;
  load.options = {{"fail_load", "true"}};
  CHECK(unloadable.load(load).code() == absl::StatusCode::kFailedPrecondition);
}

TEST_CASE("noop: options are checked and named", "[stages][noop]") {
  const auto message = [](const Options& options) {
    return messageOf(parseNoopOptions(options, DType::kFloat32).status());
  };
  CHECK(message({{"size", "3"}}).find("stage noop has no option \"size\"; it has: bytes, bytes_per_frame") == 0);
  CHECK(message({{"bytes", "0"}}).find("option bytes: \"0\" is not an integer from 1 to") == 0);
  CHECK(message({{"leaves", "2x"}}).find("\"2x\" is not an integer from 1 to 256") != std::string::npos);
  CHECK(message({{"dtype", "float8"}}).find("is not a dtype such as") != std::string::npos);
  CHECK(message({{"fail_load", "yes"}}).find("is not true or false") != std::string::npos);
  CHECK(message({{"input_keys", ","}}).find("is not names separated by commas") != std::string::npos);
}

}  // namespace
}  // namespace latentd::stages
