#include "stages/weights/model_config.h"

#include "tests/stages/temp_checkpoint.h"
#include "tests/support/catch.h"
#include "tests/support/contains_text.h"

namespace latentd::stages {
namespace {

using testing::TempCheckpoint;

ModelConfig parse(const TempCheckpoint& files, const std::string& text) {
  auto config = ModelConfig::read(files.write("config.json", text));
  REQUIRE(config.ok());
  return *std::move(config);
}

bool mentions(const Status& status, const std::string& part) {
  return messageOf(status).find(part) != std::string::npos;
}

TEST_CASE("model config: values of every kind are read", "[weights]") {
  TempCheckpoint files;
  ModelConfig config = parse(files, R"({"layers": 3, "eps": 1e-6, "norm": true, "name": "wan", "patch": [1, 2, 2],
      "mean": [0.5, -1], "up": [false, true], "files": {"a": "b"}, "vae": ["diffusers", "AutoencoderKLWan"],
      "transformer_2": [null, null], "image_dim": null})");
  CHECK(config.positive("layers") == 3);
  CHECK(config.number("eps") == 1e-6);
  CHECK(config.flag("norm", false));
  CHECK(config.text("name") == "wan");
  CHECK(config.integers("patch", 3) == std::vector<int64_t>{1, 2, 2});
  CHECK(config.numbers("mean") == std::vector<double>{0.5, -1});
  CHECK(config.flags("up", 2) == std::vector<bool>{false, true});
  CHECK(config.texts("files").at("a") == "b");
  CHECK(config.componentClass("vae") == "AutoencoderKLWan");
  CHECK_FALSE(config.componentClass("transformer_2").has_value());
  CHECK_FALSE(config.componentClass("image_encoder").has_value());
  CHECK(config.positive("absent", 7) == 7);
  CHECK(config.number("image_dim", 2.5) == 2.5);
  CHECK(config.finish().ok());
}

TEST_CASE("model config: a wrong value is named with file, key, value and what was expected", "[weights]") {
  TempCheckpoint files;
  const std::string text = R"({"layers": -3, "eps": "small", "norm": 1, "name": 4, "patch": [1, 2], "vae": "x",
      "files": {"a": 1}, "up": [true, 0]})";
  const auto problemOf = [&](const std::function<void(ModelConfig&)>& read) {
    ModelConfig config = parse(files, text);
    read(config);
    CHECK(mentions(config.status(), files.path() + "/config.json"));
    return messageOf(config.status());
  };
  using latentd::testing::containsText;
  CHECK_THAT(problemOf([](ModelConfig& c) { c.positive("layers"); }),
             containsText("layers = -3") && containsText("at least 1"));
  CHECK_THAT(problemOf([](ModelConfig& c) { c.number("eps"); }), containsText("eps = \"small\", expected a number"));
  CHECK_THAT(problemOf([](ModelConfig& c) { c.flag("norm", true); }), containsText("norm = 1, expected true or false"));
  CHECK_THAT(problemOf([](ModelConfig& c) { c.text("name"); }), containsText("name = 4, expected a string"));
  CHECK_THAT(problemOf([](ModelConfig& c) { c.integers("patch", 3); }), containsText("a list of 3 integers"));
  CHECK_THAT(problemOf([](ModelConfig& c) { c.flags("up"); }), containsText("up = [true,0]"));
  CHECK_THAT(problemOf([](ModelConfig& c) { c.texts("files"); }), containsText("an object of strings"));
  CHECK_THAT(problemOf([](ModelConfig& c) { c.componentClass("vae"); }), containsText("vae = \"x\""));
  CHECK_THAT(problemOf([](ModelConfig& c) { c.positive("heads"); }), containsText("key \"heads\" is missing"));
}

TEST_CASE("model config: the first problem sticks", "[weights]") {
  TempCheckpoint files;
  ModelConfig config = parse(files, R"({"a": 0, "b": 0})");
  config.positive("a");
  config.positive("b");
  CHECK(mentions(config.status(), "a = 0"));
  CHECK_FALSE(mentions(config.status(), "b = 0"));
}

TEST_CASE("model config: a set key that nobody knows is refused", "[weights]") {
  TempCheckpoint files;
  CHECK(parse(files, R"({"_class_name": "X", "a": null, "b": false, "c": [], "d": {}})").finish().ok());
  const Status status = parse(files, R"({"window": 5})").finish();
  CHECK(status.code() == absl::StatusCode::kUnimplemented);
  CHECK(mentions(status, "window = 5"));
  ModelConfig ignoring = parse(files, R"({"window": 5})");
  ignoring.ignore({"window"});
  CHECK(ignoring.finish().ok());
  ModelConfig refusing = parse(files, R"({"window": 5})");
  refusing.refuseIfSet("window", "null");
  CHECK(mentions(refusing.status(), "window = 5, expected null"));
}

TEST_CASE("model config: files that are missing, folders, or no JSON object", "[weights]") {
  TempCheckpoint files;
  CHECK(ModelConfig::read(files.path() + "/none.json").status().code() == absl::StatusCode::kNotFound);
  CHECK_FALSE(ModelConfig::read(files.path()).ok());
  CHECK(mentions(ModelConfig::read(files.write("a.json", "{\"a\": ")).status(), "not valid JSON"));
  CHECK(mentions(ModelConfig::read(files.write("b.json", "[1]")).status(), "expected a JSON object"));
  CHECK(mentions(ModelConfig::read(files.write("c.json", "")).status(), "c.json"));
  CHECK(mentions(ModelConfig::read(files.write("d.json", "{\"\xff\": 1}")).status(), "not valid JSON"));
}

}  // namespace
}  // namespace latentd::stages
