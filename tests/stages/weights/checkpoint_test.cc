#include "stages/weights/checkpoint.h"

#include <ATen/ops/full.h>

#include <algorithm>
#include <filesystem>
#include <numeric>

#include "tests/stages/cuda_device.h"
#include "tests/stages/golden.h"
#include "tests/stages/temp_checkpoint.h"
#include "tests/support/contains_text.h"

namespace latentd::stages {
namespace {

using latentd::testing::containsText;
using testing::bytesOf;
using testing::problem;
using testing::TempCheckpoint;

const std::string kHeader = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                            R"("n":{"dtype":"I32","shape":[1],"data_offsets":[8,12]}})";
const std::string kData = bytesOf({1.5F, -2.0F, 0.0F});
constexpr const char* kFile = "diffusion_pytorch_model.safetensors";

WeightReader open(const std::string& path) {
  auto reader = WeightReader::open(path);
  REQUIRE(problem(reader.status()) == "");
  return *std::move(reader);
}

TEST_CASE("checkpoint: a matching dtype is a view that outlives the reader, another one a copy", "[weights]") {
  TempCheckpoint files;
  files.writeSafetensors(kFile, kHeader, kData);
  at::Tensor viewed;
  {
    WeightReader reader = open(files.path());
    CHECK(reader.has("a"));
    CHECK_FALSE(reader.has("b"));
    viewed = reader.take("a", {2}, at::kFloat);
    const at::Tensor again = reader.take("a", {2}, at::kFloat);
    CHECK(viewed.data_ptr() == again.data_ptr());
    const at::Tensor half = reader.take("a", {2}, at::kHalf);
    CHECK(half.scalar_type() == at::kHalf);
    CHECK(half[1].item<double>() == -2.0);
    CHECK(reader.takenBytes() == 8 + 8 + 4);
    CHECK(reader.take("n", {1}, at::kInt).item<int>() == 0);
    CHECK(problem(reader.finish()) == "");
  }
  CHECK(viewed[0].item<double>() == 1.5);
}

TEST_CASE("checkpoint: a part of a tensor is its rows or columns, contiguous, and counted alone", "[weights]") {
  TempCheckpoint files;
  std::string header = R"({"w":{"dtype":"F32","shape":[2,4],"data_offsets":[0,32]}})";
  header.resize((header.size() + 7) / 8 * 8, ' ');  // so that the data are aligned
  files.writeSafetensors(kFile, header, bytesOf({0, 1, 2, 3, 4, 5, 6, 7}));
  WeightReader reader = open(files.path());
  const at::Tensor whole = reader.take("w", {2, 4}, at::kFloat);
  const at::Tensor rows = reader.take("w", {2, 4}, at::kFloat, at::kCPU, {.dim = 0, .parts = 2, .part = 1});
  CHECK(rows.equal(whole.narrow(0, 1, 1)));
  CHECK(rows.data_ptr() == static_cast<float*>(whole.data_ptr()) + 4);  // where they are mapped
  const at::Tensor columns = reader.take("w", {2, 4}, at::kFloat, at::kCPU, {.dim = 1, .parts = 4, .part = 2});
  CHECK(columns.equal(whole.narrow(1, 2, 1)));
  CHECK(columns.is_contiguous());
  CHECK(columns.storage().nbytes() == 2 * sizeof(float));
  CHECK(reader.take("w", {2, 4}, at::kHalf, at::kCPU, {.dim = 0, .parts = 2}).sizes() == at::IntArrayRef({1, 4}));
  CHECK(reader.takenBytes() == 32 + 16 + 8 + 8);
  auto checked = WeightReader::open(
      files.path(), [](double, const std::string&) {}, /*check_only=*/true);
  REQUIRE(problem(checked.status()) == "");
  CHECK_FALSE(checked->take("w", {2, 4}, at::kFloat, at::kCPU, {.dim = 1, .parts = 4}).defined());
  CHECK(checked->takenBytes() == 8);
}

TEST_CASE("checkpoint: on a device tensors are what they are on a CPU", "[weights][cuda]") {
  if (!testing::hasCuda()) return;
  for (const auto& oracle : testing::oracles()) {
    for (const char* component : {"wan21-t2v/transformer", "wan21-t2v/vae", "wan22-a14b/text_encoder"}) {
      for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
        INFO(oracle.name << " " << component << " " << dtype);
        WeightReader here = open(oracle.checkpoint(component));
        WeightReader there = open(oracle.checkpoint(component));
        for (const auto& item : std::filesystem::directory_iterator(oracle.checkpoint(component))) {
          if (item.path().extension() != ".safetensors") continue;
          const auto file = SafetensorsFile::open(item.path().string());
          REQUIRE(problem(file.status()) == "");
          for (const auto& [name, entry] : (*file)->entries()) {
            const at::Tensor expected = here.take(name, entry.shape, dtype);
            const at::Tensor tensor = there.take(name, entry.shape, dtype, testing::cudaDevice());
            CHECK(tensor.device() == testing::cudaDevice());
            CHECK(testing::identical(tensor.cpu(), expected));
          }
        }
        CHECK(there.takenBytes() == here.takenBytes());
      }
    }
  }
}

TEST_CASE("checkpoint: on a device a tensor of many pieces is whole, as it is stored and converted",
          "[weights][cuda]") {
  if (!testing::hasCuda()) return;
  constexpr int64_t kElements = (int64_t{40} << 20) + 3;  // 160 MiB: five pieces and a rest, none of them aligned
  std::vector<float> values(kElements);
  std::iota(values.begin(), values.end(), 0.0F);
  TempCheckpoint files;
  files.writeSafetensors(kFile, R"({"a":{"dtype":"F32","shape":[41943043],"data_offsets":[0,167772172]}})",
                         bytesOf(values));
  WeightReader reader = open(files.path());
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const at::Tensor expected = reader.take("a", {kElements}, dtype);
    // Memory that was in use until now, as in a load: what the piece overtakes would be lost.
    at::Tensor tensor = at::full({kElements}, -1.0, at::TensorOptions().device(testing::cudaDevice()));
    tensor = at::Tensor();
    tensor = reader.take("a", {kElements}, dtype, testing::cudaDevice());
    CHECK(testing::identical(tensor.cpu(), expected));
  }
}

TEST_CASE("checkpoint: an unaligned tensor is copied, not viewed", "[weights]") {
  TempCheckpoint files;
  // A header of odd length puts the data section on an odd address.
  const std::string header = R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
  const std::string padded = header + std::string(header.size() % 2 == 0 ? 1 : 0, ' ');
  files.writeSafetensors(kFile, padded, bytesOf({3.25F}));
  const at::Tensor taken = open(files.path()).take("a", {1}, at::kFloat);
  CHECK(reinterpret_cast<uintptr_t>(taken.data_ptr()) % alignof(float) == 0);
  CHECK(taken.item<double>() == 3.25);
}

TEST_CASE("checkpoint: missing, misshapen, mistyped and extra tensors are named", "[weights]") {
  TempCheckpoint files;
  const std::string path = files.writeSafetensors(kFile, kHeader, kData);
  const auto failure = [&](const char* name, at::IntArrayRef shape, at::ScalarType dtype) {
    WeightReader reader = open(files.path());
    CHECK_FALSE(reader.take(name, shape, dtype).defined());
    CHECK_FALSE(reader.take("a", {2}, at::kFloat).defined());  // the first problem sticks
    return problem(reader.finish({"a", "n"}));
  };
  CHECK_THAT(failure("b", {4, 2}, at::kFloat),
             containsText("tensor \"b\" with shape [4, 2] is missing") && containsText(files.path()));
  CHECK_THAT(failure("a", {3}, at::kFloat),
             containsText(path) && containsText("\"a\" has shape [2]") && containsText("[3]"));
  CHECK_THAT(failure("n", {1}, at::kFloat),
             containsText(path) && containsText("\"n\" has dtype int32, expected float32"));
  CHECK_THAT(failure("a", {2}, at::kLong), containsText("\"a\" has dtype float32, expected int64"));

  WeightReader reader = open(files.path());
  reader.take("a", {2}, at::kFloat);
  CHECK_THAT(problem(reader.finish()), containsText("\"n\" (" + path + ")"));
  CHECK(problem(reader.finish({"n"})) == "");
}

TEST_CASE("checkpoint: names by ending can be ignored", "[weights]") {
  TempCheckpoint files;
  files.writeSafetensors(kFile, R"({"blocks.0.norm_added_q.weight":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
                         bytesOf({1}));
  CHECK(problem(open(files.path()).finish({".norm_added_q.weight"})) == "");
  CHECK_FALSE(open(files.path()).finish({"norm_added_q.weight"}).ok());
}

TEST_CASE("checkpoint: progress rises to 1 and names the file", "[weights]") {
  TempCheckpoint files;
  const std::string path = files.writeSafetensors(kFile, kHeader, kData);
  std::vector<double> fractions;
  auto reader = WeightReader::open(files.path(), [&](double fraction, const std::string& detail) {
    fractions.push_back(fraction);
    CHECK(detail == path);
  });
  REQUIRE(reader.ok());
  reader->take("a", {2}, at::kFloat);
  reader->take("n", {1}, at::kInt);
  REQUIRE(fractions.size() == 2);
  CHECK(fractions[0] == Approx(8.0 / 12.0));
  CHECK(fractions[1] == 1.0);
}

// ---- shards -------------------------------------------------------------------------------------------------

std::string scalarHeader(const std::string& name) {
  return "{\"" + name + R"(":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
}

void writeShards(const TempCheckpoint& files) {
  files.writeSafetensors("s1.safetensors", scalarHeader("a"), bytesOf({1}));
  files.writeSafetensors("s2.safetensors", scalarHeader("b"), bytesOf({2}));
  files.write("model.safetensors.index.json", R"({"weight_map":{"a":"s1.safetensors","b":"s2.safetensors"}})");
}

TEST_CASE("checkpoint: shards are found through the index", "[weights]") {
  TempCheckpoint files;
  writeShards(files);
  WeightReader reader = open(files.path());
  CHECK(reader.take("a", {1}, at::kFloat).item<double>() == 1);
  CHECK(reader.take("b", {1}, at::kFloat).item<double>() == 2);
  CHECK(problem(reader.finish()) == "");
}

TEST_CASE("checkpoint: a broken set of shards is refused with the file", "[weights]") {
  TempCheckpoint files;
  writeShards(files);
  const auto failure = [&] { return problem(WeightReader::open(files.path()).status()); };
  SECTION("missing shard") {
    files.remove("s2.safetensors");
    CHECK_THAT(failure(), containsText("s2.safetensors") && containsText("model.safetensors.index.json"));
  }
  SECTION("tensor in another shard than the index says") {
    files.write("model.safetensors.index.json", R"({"weight_map":{"a":"s2.safetensors","b":"s1.safetensors"}})");
    CHECK_THAT(failure(), containsText("tensor \"a\" is not in s2.safetensors"));
  }
  SECTION("tensor that the index does not name") {
    files.write("model.safetensors.index.json", R"({"weight_map":{"a":"s1.safetensors"}})");
    files.writeSafetensors("s1.safetensors",
                           R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                           R"("c":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
                           bytesOf({1, 2}));
    CHECK_THAT(failure(), containsText("tensor \"c\" is not named by"));
  }
  SECTION("tensor twice") {
    files.writeSafetensors("s2.safetensors", scalarHeader("a"), bytesOf({2}));
    CHECK_THAT(failure(),
               containsText("tensor \"a\" is in") && containsText("s1.safetensors") && containsText("s2.safetensors"));
  }
  SECTION("truncated shard") {
    const std::string whole = testing::readFile(files.path() + "/s2.safetensors");
    files.write("s2.safetensors", whole.substr(0, whole.size() - 1));
    CHECK_THAT(failure(), containsText("s2.safetensors") && containsText("tensor \"b\""));
  }
  SECTION("bad index") {
    files.write("model.safetensors.index.json", R"({"weight_map":)");
    CHECK_THAT(failure(), containsText("model.safetensors.index.json: not valid JSON"));
  }
  SECTION("index without a map") {
    files.write("model.safetensors.index.json", "{}");
    CHECK_THAT(failure(), containsText("\"weight_map\" is missing"));
  }
  SECTION("shard outside the folder") {
    files.write("model.safetensors.index.json", R"({"weight_map":{"a":"../s1.safetensors"}})");
    CHECK_THAT(failure(), containsText("without folders"));
  }
}

TEST_CASE("checkpoint: a folder without weights says what was looked for", "[weights]") {
  TempCheckpoint files;
  const auto reader = WeightReader::open(files.path());
  CHECK(reader.status().code() == absl::StatusCode::kNotFound);
  CHECK_THAT(messageOf(reader.status()), containsText("diffusion_pytorch_model.safetensors or model.safetensors"));
}

TEST_CASE("checkpoint: every reference checkpoint opens", "[weights][golden]") {
  for (const auto& oracle : testing::oracles()) {
    for (const char* component : {"wan21-t2v/transformer", "wan21-t2v/text_encoder", "wan21-t2v/vae",
                                  "wan22-a14b/transformer", "wan22-a14b/transformer_2", "wan22-a14b/text_encoder"}) {
      INFO(oracle.name << " " << component);
      CHECK(problem(WeightReader::open(oracle.checkpoint(component)).status()) == "");
    }
  }
}

}  // namespace
}  // namespace latentd::stages
