#include "stages/weights/safetensors.h"

#include <cstring>

#include "tests/stages/temp_checkpoint.h"
#include "tests/support/catch.h"
#include "tests/support/contains_text.h"

namespace latentd::stages {
namespace {

using testing::bytesOf;
using testing::safetensorsBytes;
using testing::TempCheckpoint;

const std::string kTwo = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                         R"("b":{"dtype":"BF16","shape":[1,2],"data_offsets":[8,12]},"__metadata__":{"meta":"x"}})";
const std::string kTwoData = bytesOf({1, 2, 3});

std::string refusal(const std::string& bytes) {
  TempCheckpoint files;
  const std::string path = files.write("m.safetensors", bytes);
  const auto file = SafetensorsFile::open(path);
  REQUIRE_FALSE(file.ok());
  const std::string message = messageOf(file.status());
  CHECK(message.find(path) != std::string::npos);
  return message;
}

std::string refusalOf(const std::string& header, const std::string& data) {
  return refusal(safetensorsBytes(header, data));
}

TEST_CASE("safetensors: entries, bytes and metadata are read", "[weights]") {
  TempCheckpoint files;
  const auto file = SafetensorsFile::open(files.writeSafetensors("m.safetensors", kTwo, kTwoData));
  REQUIRE(file.ok());
  REQUIRE((*file)->entries().size() == 2);
  const SafetensorsFile::Entry& b = (*file)->entries().at("b");
  CHECK(b.dtype == DType::kBFloat16);
  CHECK(b.shape == std::vector<int64_t>{1, 2});
  CHECK(b.bytes == 4);
  CHECK(std::memcmp((*file)->data(b), kTwoData.data() + 8, 4) == 0);
  CHECK((*file)->metadata().at("meta") == "x");
}

TEST_CASE("safetensors: a scalar and an empty tensor are valid", "[weights]") {
  TempCheckpoint files;
  const auto file = SafetensorsFile::open(files.writeSafetensors(
      "m.safetensors",
      R"({"e":{"dtype":"F32","shape":[0,3],"data_offsets":[0,0]},"s":{"dtype":"F32","shape":[],"data_offsets":[0,4]}})",
      bytesOf({5})));
  REQUIRE(file.ok());
  CHECK((*file)->entries().at("s").shape.empty());
  CHECK((*file)->entries().at("e").bytes == 0);
}

TEST_CASE("safetensors: a file cut at any byte is refused", "[weights]") {
  const std::string whole = safetensorsBytes(kTwo, kTwoData);
  TempCheckpoint files;
  for (size_t size = 0; size < whole.size(); ++size) {
    INFO("first " << size << " of " << whole.size() << " bytes");
    CHECK_FALSE(SafetensorsFile::open(files.write("m.safetensors", whole.substr(0, size))).ok());
  }
  CHECK(SafetensorsFile::open(files.write("m.safetensors", whole)).ok());
}

TEST_CASE("safetensors: what is wrong is said with file and tensor", "[weights]") {
  using latentd::testing::containsText;
  CHECK_THAT(refusal(""), containsText("0 bytes are too few"));
  CHECK_THAT(refusal(std::string(8, '\xff')), containsText("header length"));
  CHECK_THAT(refusalOf("{", ""), containsText("not valid JSON"));
  CHECK_THAT(refusalOf("[]", ""), containsText("no JSON object"));
  CHECK_THAT(refusalOf(R"({"__metadata__":{"a":1}})", ""), containsText("\"a\" is no string"));
  CHECK_THAT(refusalOf(R"({"a":3})", ""), containsText("tensor \"a\"") && containsText("no object"));
  CHECK_THAT(refusalOf(R"({"a":{"dtype":"F32","shape":[1]}})", ""), containsText("no \"data_offsets\""));
  CHECK_THAT(refusalOf(R"({"a":{"dtype":"F8_E4M3","shape":[1],"data_offsets":[0,1]}})", "x"),
             containsText("tensor \"a\" has dtype \"F8_E4M3\"") && containsText("F32, F16, BF16"));
  CHECK_THAT(refusalOf(R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", bytesOf({1})),
             containsText("no list of sizes"));
  CHECK_THAT(refusalOf(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4]}})", bytesOf({1})),
             containsText("no pair of offsets"));
  CHECK_THAT(refusalOf(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", bytesOf({1})),
             containsText("bytes 0 to 8 lie outside the 4 data bytes"));
  CHECK_THAT(refusalOf(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", bytesOf({1})),
             containsText("bytes 4 to 0"));
  CHECK_THAT(refusalOf(R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})", bytesOf({1, 2})),
             containsText("its shape [3] of float32 does not fill its 8 bytes"));
  // 2^62 * 4 elements overflow to 0 bytes.
  CHECK_THAT(refusalOf(R"({"a":{"dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,0]}})", ""),
             containsText("does not fill"));
}

TEST_CASE("safetensors: overlaps, holes, trailing bytes and repeated names are refused", "[weights]") {
  using latentd::testing::containsText;
  const auto pair = [](const char* second) {
    return std::string(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[1],)") +
           R"("data_offsets":)" + second + "}}";
  };
  CHECK_THAT(refusalOf(pair("[4,8]"), bytesOf({1, 2})), containsText("tensor \"b\" begins at byte 4"));
  CHECK_THAT(refusalOf(pair("[12,16]"), bytesOf({1, 2, 3, 4})), containsText("tensor \"b\" begins at byte 12"));
  CHECK_THAT(refusalOf(pair("[8,12]"), bytesOf({1, 2, 3, 4})), containsText("end at byte 12 of 16"));
  CHECK_THAT(refusalOf(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                       R"("a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
                       bytesOf({1})),
             containsText("tensor \"a\" appears twice"));
}

TEST_CASE("safetensors: missing files and folders", "[weights]") {
  TempCheckpoint files;
  CHECK(SafetensorsFile::open(files.path() + "/none").status().code() == absl::StatusCode::kNotFound);
  CHECK(messageOf(SafetensorsFile::open(files.path()).status()).find("not a regular file") != std::string::npos);
}

}  // namespace
}  // namespace latentd::stages
