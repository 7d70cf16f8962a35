#include "stages/text/umt5_encoder.h"

#include <ATen/ops/embedding.h>

#include <cstring>
#include <nlohmann/json.hpp>

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
using testing::rmsDifference;
using testing::TempCheckpoint;

constexpr double kFloatLimit = 2e-5;

Umt5Encoder load(const std::string& directory, at::ScalarType dtype = at::kFloat, at::Device device = at::kCPU) {
  auto encoder = Umt5Encoder::load(directory, {.dtype = dtype, .device = device});
  REQUIRE(problem(encoder.status()) == "");
  return *std::move(encoder);
}

// The ids of a golden text, without padding.
std::vector<int64_t> idsOf(const Golden& golden, int64_t row) {
  const int64_t length = golden.tensor("mask")[row].sum().item<int64_t>();
  const at::Tensor ids = golden.tensor("ids")[row].contiguous();
  return {ids.data_ptr<int64_t>(), ids.data_ptr<int64_t>() + length};
}

// Calls check(name, ids) for each text of the golden file that has `name` + suffix.
template <class Check>
void forEachText(const Golden& golden, const std::string& suffix, Check check) {
  int checked = 0;
  const auto names = golden.meta().at("names").get<std::vector<std::string>>();
  for (size_t row = 0; row < names.size(); ++row) {
    if (!golden.has(names[row] + suffix)) continue;
    INFO(names[row]);
    check(names[row], idsOf(golden, static_cast<int64_t>(row)));
    ++checked;
  }
  REQUIRE(checked > 0);
}

template <class Check>
void forEachModel(Check check) {
  for (const Oracle& oracle : oracles()) {
    for (const std::string& model : testing::textModels(oracle)) {
      INFO(oracle.name << " " << model);
      check(oracle.checkpoint(model) + "/text_encoder", Golden(oracle, model + "/text"));
    }
  }
}

TEST_CASE("umt5: hidden states in float32 are the reference's", "[text][golden]") {
  forEachModel([](const std::string& directory, const Golden& golden) {
    const Umt5Encoder encoder = load(directory);
    forEachText(golden, ".hidden", [&](const std::string& name, const std::vector<int64_t>& ids) {
      const at::Tensor hidden = encoder.encode(ids);
      CHECK(hidden.scalar_type() == at::kFloat);
      CHECK(maxAbsDifference(hidden, golden.tensor(name + ".hidden")) <= kFloatLimit);
    });
  });
}

TEST_CASE("umt5: hidden states in bfloat16 differ from the reference's less than those from float32",
          "[text][golden]") {
  forEachModel([](const std::string& directory, const Golden& golden) {
    const Umt5Encoder encoder = load(directory, at::kBFloat16);
    forEachText(golden, ".hidden_bf16", [&](const std::string& name, const std::vector<int64_t>& ids) {
      const at::Tensor expected = golden.tensor(name + ".hidden_bf16");
      const at::Tensor hidden = encoder.encode(ids);
      CHECK(hidden.scalar_type() == at::kBFloat16);
      CHECK(rmsDifference(hidden, expected) <= rmsDifference(expected, golden.tensor(name + ".hidden")));
    });
  });
}

TEST_CASE("umt5: float16 keeps the last weight of the feed-forward part in float32", "[text][golden]") {
  forEachModel([](const std::string& directory, const Golden& golden) {
    const Umt5Encoder encoder = load(directory, at::kHalf);
    const Umt5Config& config = encoder.config();
    const Umt5Encoder reduced = load(directory, at::kBFloat16);
    CHECK(encoder.weightBytes() ==
          reduced.weightBytes() + static_cast<uint64_t>(2 * config.layers * config.d_model * config.d_ff));
    forEachText(golden, ".hidden_bf16", [&](const std::string& name, const std::vector<int64_t>& ids) {
      const at::Tensor hidden = encoder.encode(ids);
      CHECK(hidden.scalar_type() == at::kHalf);
      // float16 has three bits more than bfloat16; half of them is a safe claim.
      const at::Tensor expected = golden.tensor(name + ".hidden");
      CHECK(rmsDifference(hidden, expected) <= rmsDifference(golden.tensor(name + ".hidden_bf16"), expected) / 4);
    });
  });
}

TEST_CASE("umt5: on a device hidden states are the reference's, to 1e-4 in float32", "[text][golden][cuda]") {
  if (!testing::hasCuda()) return;
  forEachModel([](const std::string& directory, const Golden& golden) {
    const Umt5Encoder encoder = load(directory, at::kFloat, testing::cudaDevice());
    const Umt5Encoder bfloat16 = load(directory, at::kBFloat16, testing::cudaDevice());
    const Umt5Encoder half = load(directory, at::kHalf, testing::cudaDevice());
    forEachText(golden, ".hidden_bf16", [&](const std::string& name, const std::vector<int64_t>& ids) {
      const at::Tensor expected = golden.tensor(name + ".hidden");
      CHECK(maxAbsDifference(encoder.encode(ids), expected) <= 1e-4);
      const double theirs = rmsDifference(golden.tensor(name + ".hidden_bf16"), expected);
      const double ours = rmsDifference(bfloat16.encode(ids), expected);
      INFO("of the reference's " << ours / theirs);
      CHECK(ours <= 1.25 * theirs);
      CHECK(rmsDifference(half.encode(ids), expected) <= theirs / 4);
    });
  });
}

TEST_CASE("umt5: on a device the host never waits, and the same text gives the same bits", "[text][cuda]") {
  if (!testing::hasCuda()) return;
  const auto dtype = GENERATE(at::kFloat, at::kBFloat16, at::kHalf);
  const Umt5Encoder encoder =
      load(testing::trimmedOracle().checkpoint("wan21-t2v") + "/text_encoder", dtype, testing::cudaDevice());
  at::Tensor first;
  at::Tensor second;
  {
    const testing::HostNeverWaits guard;
    first = encoder.encode({261, 382, 265, 1});
    encoder.encode({1});
    second = encoder.encode({261, 382, 265, 1});
  }
  CHECK(testing::identical(second, first));
}

TEST_CASE("umt5: positions fall in the reference's buckets and give its biases", "[text][golden]") {
  forEachModel([](const std::string& directory, const Golden& golden) {
    constexpr int64_t kLength = 150;
    if (!golden.has("layers.bucket_row0_150")) return;
    const Umt5Encoder encoder = load(directory);
    const at::Tensor buckets = relativePositionBuckets(encoder.config(), kLength);
    CHECK(buckets.slice(0, kLength - 1).equal(golden.tensor("layers.bucket_row0_150")));
    CHECK(buckets.slice(0, 0, kLength).flip(0).equal(golden.tensor("layers.bucket_col0_150")));
    auto reader = WeightReader::open(directory);
    REQUIRE(problem(reader.status()) == "");
    const at::Tensor weight = reader->take("encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
                                           {encoder.config().position_buckets, encoder.config().heads}, at::kFloat);
    const at::Tensor bias = positionBias(at::embedding(weight, buckets).t(), kLength);
    const at::Tensor expected = golden.tensor("layers.position_bias0_150");
    CHECK(bias.slice(0, 0, expected.size(0)).equal(expected));
  });
}

TEST_CASE("umt5: the same text gives the same bits again", "[text]") {
  const Umt5Encoder encoder = load(testing::trimmedOracle().checkpoint("wan21-t2v") + "/text_encoder");
  const std::vector<int64_t> ids = {261, 382, 265, 1};
  const at::Tensor first = encoder.encode(ids);
  encoder.encode({1});
  CHECK(testing::identical(encoder.encode(ids), first));
}

void replaceAll(std::string& text, const std::string& from, const std::string& to) {
  for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size()))
    text.replace(at, from.size(), to);
}

// Renames a tensor in every file of a text_encoder/ folder.
void renameTensor(const TempCheckpoint& files, const std::string& folder, const std::string& from,
                  const std::string& to) {
  for (const std::string file :
       {"model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors", "model-00003-of-00003.safetensors"}) {
    const std::string bytes = testing::readFile(files.path() + "/" + folder + "/" + file);
    uint64_t header_bytes = 0;
    std::memcpy(&header_bytes, bytes.data(), sizeof header_bytes);
    std::string header = bytes.substr(sizeof header_bytes, header_bytes);
    replaceAll(header, "\"" + from + "\"", "\"" + to + "\"");
    files.writeSafetensors(folder + "/" + file, header, bytes.substr(sizeof header_bytes + header_bytes));
  }
  std::string index = testing::readFile(files.path() + "/" + folder + "/model.safetensors.index.json");
  replaceAll(index, "\"" + from + "\"", "\"" + to + "\"");
  files.write(folder + "/model.safetensors.index.json", index);
}

TEST_CASE("umt5: either name of the embedding will do, and no other", "[text]") {
  const std::string source = testing::trimmedOracle().checkpoint("wan22-a14b") + "/text_encoder";
  TempCheckpoint files;
  files.copy(source);
  const at::Tensor expected = load(source).encode({261, 382, 1});
  renameTensor(files, "text_encoder", "shared.weight", "encoder.embed_tokens.weight");
  CHECK(testing::identical(load(files.path() + "/text_encoder").encode({261, 382, 1}), expected));
  renameTensor(files, "text_encoder", "encoder.embed_tokens.weight", "embedding.weight");
  const Status status = Umt5Encoder::load(files.path() + "/text_encoder", {}).status();
  CHECK(mentions(status, "encoder.embed_tokens.weight"));
}

TEST_CASE("umt5: weights and configuration that do not fit are refused by name", "[text]") {
  const std::string source = testing::trimmedOracle().checkpoint("wan22-a14b") + "/text_encoder";
  TempCheckpoint files;
  files.copy(source);
  const std::string folder = files.path() + "/text_encoder";
  json config = json::parse(testing::readFile(source + "/config.json"));
  std::string expected;
  SECTION("missing tensor") {
    renameTensor(files, "text_encoder", "encoder.block.1.layer.1.DenseReluDense.wo.weight", "wo");
    expected = "encoder.block.1.layer.1.DenseReluDense.wo.weight";
  }
  const int64_t layers = config["num_layers"];
  SECTION("extra layers") {
    config["num_layers"] = layers - 1;
    expected = "encoder.block." + std::to_string(layers - 1);
  }
  SECTION("missing layers") {
    config["num_layers"] = layers + 1;
    expected = "encoder.block." + std::to_string(layers);
  }
  SECTION("other sizes") {
    config["d_ff"] = 97;
    expected = "wi_0";
  }
  SECTION("missing shard") {
    files.remove("text_encoder/model-00002-of-00003.safetensors");
    expected = "model-00002-of-00003.safetensors";
  }
  SECTION("T5") {
    config["model_type"] = "t5";
    expected = "model_type = \"t5\", expected \"umt5\"";
  }
  SECTION("ungated") {
    config["feed_forward_proj"] = "relu";
    expected = "feed_forward_proj";
  }
  SECTION("buckets") {
    config["relative_attention_num_buckets"] = 30;
    expected = "relative_attention_num_buckets = 30, expected a multiple of 4";
  }
  SECTION("distance") {
    config["relative_attention_max_distance"] = 8;
    expected = "relative_attention_max_distance";
  }
  SECTION("epsilon") {
    config["layer_norm_epsilon"] = 0;
    expected = "layer_norm_epsilon";
  }
  SECTION("no heads") {
    config["num_heads"] = 0;
    expected = "num_heads";
  }
  files.write("text_encoder/config.json", config.dump());
  const Status status = Umt5Encoder::load(folder, {}).status();
  INFO(status.ToString());
  CHECK(mentions(status, folder));
  CHECK(mentions(status, expected));
}

}  // namespace
}  // namespace latentd::stages
