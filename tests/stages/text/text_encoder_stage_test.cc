#include "stages/text/text_encoder_stage.h"

#include <c10/cuda/CUDAStream.h>

#include <nlohmann/json.hpp>

#include "stages/device/transfer.h"
#include "tests/stages/cuda_device.h"
#include "tests/stages/temp_checkpoint.h"
#include "tests/stages/text/prompts.h"

namespace latentd::stages {
namespace {

using nlohmann::json;
using testing::Golden;
using testing::maxAbsDifference;
using testing::mentions;
using testing::Oracle;
using testing::oracles;
using testing::problem;
using testing::TempCheckpoint;

constexpr double kFloatLimit = 2e-5;
constexpr int64_t kRows = 512;

// Counts steps, and cancels if asked to.
class FakeContext final : public RunContext {
 public:
  Status beginStep(uint32_t step, uint32_t steps) override {
    CHECK(step < steps);
    ++begun;
    return cancelled ? absl::CancelledError("the job was cancelled") : absl::OkStatus();
  }
  void finishStep(uint32_t step, uint32_t steps) override {
    CHECK(step < steps);
    ++finished;
  }
  FrameSink* frames() override { return nullptr; }

  bool cancelled = false;
  int begun = 0;
  int finished = 0;
};

std::string demoModel() { return testing::trimmedOracle().checkpoint("wan21-t2v"); }

void loadStage(TextEncoderStage& stage, const LoadContext& context) {
  REQUIRE(problem(stage.load(context)) == "");
  REQUIRE(problem(stage.warmUp()) == "");
}

SamplingParameters parameters(const std::string& prompt, const std::string& negative = "", double guidance = 5.0) {
  SamplingParameters filled;
  filled.prompt = prompt;
  filled.negative_prompt = negative;
  filled.guidance_scale = guidance;
  return filled;
}

StatusOr<TensorTree> encode(TextEncoderStage& stage, const SamplingParameters& job) {
  FakeContext context;
  auto outputs = stage.run("encode", job, TensorTree(), context);
  CHECK(context.finished == (outputs.ok() ? 1 : 0));
  return outputs;
}

TensorTree encoded(TextEncoderStage& stage, const SamplingParameters& job) {
  auto outputs = encode(stage, job);
  REQUIRE(problem(outputs.status()) == "");
  return *std::move(outputs);
}

at::Tensor tensorAt(const TensorTree& outputs, const std::string& key) {
  const TensorTree* entry = outputs.find(key);
  REQUIRE(entry != nullptr);
  const at::Tensor* tensor = entry->getIf<at::Tensor>();
  REQUIRE(tensor != nullptr);
  return *tensor;
}

// The first rows are `expected`, all others exact zeros.
void checkRows(const at::Tensor& embeds, const at::Tensor& expected) {
  CHECK(embeds.sizes() == at::IntArrayRef({1, kRows, expected.size(1)}));
  const int64_t length = expected.size(0);
  CHECK(maxAbsDifference(embeds[0].slice(0, 0, length), expected) <= kFloatLimit);
  CHECK(embeds[0].slice(0, length).count_nonzero().item<int64_t>() == 0);
}

TEST_CASE("text_encoder: from prompt to embeddings as the reference", "[text][golden]") {
  for (const Oracle& oracle : oracles()) {
    for (const std::string& model : testing::textModels(oracle)) {
      TextEncoderStage stage;
      loadStage(stage, {.model_dir = oracle.checkpoint(model)});
      const Golden golden(oracle, model + "/text");
      const auto prompts = testing::readPrompts(oracle, model);
      int checked = 0;
      for (const auto& name : golden.meta().at("names").get<std::vector<std::string>>()) {
        if (!golden.has(name + ".hidden")) continue;
        INFO(oracle.name << " " << model << " " << name);
        const std::string prompt = testing::promptNamed(prompts, name).prompt;
        const TensorTree outputs = encoded(stage, parameters("x", prompt));
        checkRows(tensorAt(outputs, "negative_prompt_embeds"), golden.tensor(name + ".hidden"));
        checkRows(tensorAt(encoded(stage, parameters(prompt)), "prompt_embeds"), golden.tensor(name + ".hidden"));
        ++checked;
      }
      REQUIRE(checked > 0);
      const TensorTree outputs = encoded(stage, parameters(testing::promptNamed(prompts, "plain").prompt));
      for (const std::string key : {"plain", "empty"}) {
        const std::string name = "encode_prompt." + key + "_512";
        if (!golden.has(name)) continue;
        INFO(oracle.name << " " << model << " " << name);
        const at::Tensor embeds = tensorAt(outputs, key == "plain" ? "prompt_embeds" : "negative_prompt_embeds");
        CHECK(maxAbsDifference(embeds[0], golden.tensor(name)) <= kFloatLimit);
      }
    }
  }
}

TEST_CASE("text_encoder: on a device the embeddings stay there, with zeros behind the text", "[text][cuda]") {
  if (!testing::hasCuda()) return;
  TextEncoderStage here;
  TextEncoderStage there;
  loadStage(here, {.model_dir = demoModel()});
  loadStage(there, {.model_dir = demoModel(), .device = testing::kCudaName});
  const SamplingParameters job = parameters("two dogs run across the city streets", "blurry");
  const TensorTree expected = encoded(here, job);
  const testing::HostNeverWaits guard;
  const TensorTree outputs = encoded(there, job);
  for (const std::string key : {"prompt_embeds", "negative_prompt_embeds"}) {
    CHECK(tensorAt(outputs, key).device() == testing::cudaDevice());
    const at::Tensor embeds = toPinnedHost(tensorAt(outputs, key));
    REQUIRE(cudaStreamSynchronize(c10::cuda::getCurrentCUDAStream().stream()) == cudaSuccess);
    CHECK(maxAbsDifference(embeds, tensorAt(expected, key)) <= 1e-4);
    CHECK(embeds.eq(0).equal(tensorAt(expected, key).eq(0)));
  }
}

TEST_CASE("text_encoder: no negative embedding without guidance", "[text]") {
  TextEncoderStage stage;
  loadStage(stage, {.model_dir = demoModel()});
  for (const double guidance : {1.0, 0.0, -3.0}) {
    const TensorTree outputs = encoded(stage, parameters("a cat", "bad", guidance));
    const TensorTree* negative = outputs.find("negative_prompt_embeds");
    REQUIRE(negative != nullptr);
    CHECK(negative->getIf<TensorTree::Null>() != nullptr);
  }
  CHECK(tensorAt(encoded(stage, parameters("a cat", "bad", 1.01)), "negative_prompt_embeds").defined());
}

TEST_CASE("text_encoder: a result depends on its text only", "[text]") {
  const DType dtype = GENERATE(DType::kFloat32, DType::kBFloat16, DType::kFloat16);
  TextEncoderStage stage;
  loadStage(stage, {.model_dir = demoModel(), .dtype = dtype});
  TextEncoderStage uncached;
  loadStage(uncached, {.model_dir = demoModel(), .dtype = dtype, .options = {{"negative_cache", "0"}}});
  for (const std::string text : {"", "a cat", "two dogs run across the city streets"}) {
    const at::Tensor negative = tensorAt(encoded(stage, parameters("x", text)), "negative_prompt_embeds");
    CHECK(testing::identical(tensorAt(encoded(stage, parameters(text)), "prompt_embeds"), negative));
    CHECK(testing::identical(tensorAt(encoded(uncached, parameters("y", text)), "negative_prompt_embeds"), negative));
  }
}

TEST_CASE("text_encoder: the latest negative prompts are kept, and no more", "[text]") {
  TextEncoderStage stage;
  loadStage(stage, {.model_dir = demoModel(), .options = {{"negative_cache", "2"}}});
  const auto storage = [&](const std::string& negative) {
    return tensorAt(encoded(stage, parameters("a cat", negative)), "negative_prompt_embeds").data_ptr();
  };
  // Held, so that no address is used twice.
  const TensorTree empty = encoded(stage, parameters("a cat"));
  const TensorTree bad = encoded(stage, parameters("a cat", "bad"));
  CHECK(storage("") == tensorAt(empty, "negative_prompt_embeds").data_ptr());
  const TensorTree worse = encoded(stage, parameters("a cat", "worse"));
  CHECK(storage("") == tensorAt(empty, "negative_prompt_embeds").data_ptr());
  CHECK(storage("worse") == tensorAt(worse, "negative_prompt_embeds").data_ptr());
  CHECK(storage("bad") != tensorAt(bad, "negative_prompt_embeds").data_ptr());
}

TEST_CASE("text_encoder: cleaning can be the basic one", "[text]") {
  TextEncoderStage mending;
  loadStage(mending, {.model_dir = demoModel()});
  TextEncoderStage basic;
  loadStage(basic, {.model_dir = demoModel(), .options = {{"prompt_cleaning", "basic"}}});
  const SamplingParameters broken = parameters("une fa\u00C3\u00A7ade");
  const SamplingParameters whole = parameters("une fa\u00E7ade");
  const at::Tensor expected = tensorAt(encoded(mending, whole), "prompt_embeds");
  CHECK(testing::identical(tensorAt(encoded(mending, broken), "prompt_embeds"), expected));
  CHECK(testing::identical(tensorAt(encoded(basic, whole), "prompt_embeds"), expected));
  CHECK_FALSE(testing::identical(tensorAt(encoded(basic, broken), "prompt_embeds"), expected));
}

TEST_CASE("text_encoder: bad prompts are refused, and the next job runs", "[text]") {
  TextEncoderStage stage;
  loadStage(stage, {.model_dir = demoModel()});
  CHECK(stage.limits().prompt_bytes_max == 16384);
  const std::vector<std::pair<SamplingParameters, std::string>> refused = {
      {parameters(std::string("a\0cat", 5)), "prompt has a NUL at offset 1"},
      {parameters("a \xFF"), "prompt: byte 0xFF at offset 2 is not valid UTF-8"},
      {parameters(std::string(100000, 'a')), "prompt has 100000 bytes, expected at most 16384"},
      {parameters("a cat", "\xC3"), "negative_prompt: byte 0xC3"},
      {parameters("a cat", std::string(16385, 'b'), 1.0), "negative_prompt has 16385 bytes"},
  };
  for (const auto& [job, text] : refused) {
    const Status status = encode(stage, job).status();
    INFO(status.ToString());
    CHECK(status.code() == absl::StatusCode::kInvalidArgument);
    CHECK(mentions(status, text));
  }
  const TensorTree outputs = encoded(stage, parameters(std::string(16384, 'a')));
  CHECK(tensorAt(outputs, "prompt_embeds")[0][kRows - 1].count_nonzero().item<int64_t>() > 0);
  FakeContext context;
  const Status unknown = stage.run("decode", parameters("a"), TensorTree(), context).status();
  CHECK(mentions(unknown, "\"decode\" is unknown; expected encode"));
}

TEST_CASE("text_encoder: a cancelled job computes nothing", "[text]") {
  TextEncoderStage stage;
  loadStage(stage, {.model_dir = demoModel()});
  FakeContext context;
  context.cancelled = true;
  const Status status = stage.run("encode", parameters("a cat"), TensorTree(), context).status();
  CHECK(status.code() == absl::StatusCode::kCancelled);
  CHECK(context.begun == 1);
  CHECK(context.finished == 0);
}

TEST_CASE("text_encoder: what it cannot load is refused by name", "[text]") {
  TempCheckpoint files;
  for (const std::string part : {"model_index.json", "tokenizer", "text_encoder"})
    files.copy(demoModel() + "/" + part);
  LoadContext context{.model_dir = files.path()};
  std::string expected;
  SECTION("option") {
    context.options = {{"cache", "1"}};
    expected = "no option \"cache\"";
  }
  SECTION("cleaning") {
    context.options = {{"prompt_cleaning", "none"}};
    expected = "\"none\" is not ftfy or basic";
  }
  SECTION("limit") {
    context.options = {{"prompt_bytes_max", "0"}};
    expected = "prompt_bytes_max: \"0\" is not an integer from 1 to 65536";
  }
  SECTION("cache size") {
    context.options = {{"negative_cache", "many"}};
    expected = "negative_cache";
  }
  SECTION("dtype") {
    context.dtype = DType::kInt64;
    expected = "dtype int64";
  }
  SECTION("several ranks") {
    context.degrees.ulysses = 2;
    expected = "parallel.ulysses = 2: wan.text_encoder can share no work along it, expected 1; it runs on one rank";
  }
  SECTION("another encoder") {
    files.write("model_index.json", R"({"text_encoder": ["transformers", "T5EncoderModel"]})");
    expected = "text_encoder is T5EncoderModel";
  }
  SECTION("no tokenizer") {
    files.remove("tokenizer");
    expected = "tokenizer/tokenizer.json";
  }
  SECTION("no encoder") {
    files.remove("text_encoder");
    expected = "text_encoder/config.json";
  }
  SECTION("ids without an embedding") {
    json rules = json::parse(testing::readFile(files.path() + "/tokenizer/tokenizer.json"));
    rules["added_tokens"].push_back({{"content", "<new>"}, {"id", 5000}});
    files.write("tokenizer/tokenizer.json", rules.dump());
    expected = "the tokenizer has ids up to 5000";
  }
  TextEncoderStage stage;
  const Status status = stage.load(context);
  INFO(status.ToString());
  CHECK(mentions(status, expected));
}

}  // namespace
}  // namespace latentd::stages
