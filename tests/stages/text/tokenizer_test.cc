#include "stages/text/tokenizer.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/stages/temp_checkpoint.h"
#include "tests/stages/text/prompts.h"

namespace latentd::stages {
namespace {

using nlohmann::json;
using testing::Golden;
using testing::mentions;
using testing::Oracle;
using testing::oracles;
using testing::problem;
using testing::TempCheckpoint;
using Ids = std::vector<int64_t>;

constexpr size_t kLengthMax = 512;

Tokenizer load(const std::string& directory) {
  auto tokenizer = Tokenizer::load(directory);
  REQUIRE(problem(tokenizer.status()) == "");
  return *std::move(tokenizer);
}

Ids encode(const Tokenizer& tokenizer, std::string_view text, size_t length_max = kLengthMax) {
  const auto ids = tokenizer.encode(text, length_max);
  REQUIRE(problem(ids.status()) == "");
  return *ids;
}

Ids idsOf(const at::Tensor& tensor) {
  return {tensor.data_ptr<int64_t>(), tensor.data_ptr<int64_t>() + tensor.numel()};
}

Ids join(std::initializer_list<Ids> parts) {
  Ids ids;
  for (const Ids& part : parts)
    ids.insert(ids.end(), part.begin(), part.end());
  return ids;
}

TEST_CASE("tokenizer: every golden prompt gets the ids of tokenizer.json", "[text][golden]") {
  for (const Oracle& oracle : oracles()) {
    for (const std::string& model : testing::textModels(oracle)) {
      const Tokenizer tokenizer = load(oracle.checkpoint(model) + "/tokenizer");
      const Golden golden(oracle, model + "/tokens");
      for (const testing::PromptCase& prompt : testing::readPrompts(oracle, model)) {
        for (const size_t length_max : {size_t{512}, size_t{226}, size_t{64}}) {
          const std::string name = prompt.name + ".ids_json_" + std::to_string(length_max);
          if (length_max != kLengthMax && !golden.has(name)) continue;
          INFO(oracle.name << " " << model << " " << name);
          CHECK(encode(tokenizer, prompt.clean, length_max) == idsOf(golden.tensor(name)));
        }
      }
    }
  }
}

// A tokenizer/ folder of the trimmed set whose tokenizer.json a test may change.
class EditedTokenizer {
 public:
  explicit EditedTokenizer(const std::string& model = "wan21-t2v") {
    files_.copy(testing::trimmedOracle().checkpoint(model) + "/tokenizer");
    rules = json::parse(testing::readFile(path() + "/tokenizer.json"));
  }

  std::string path() const { return files_.path() + "/tokenizer"; }
  const TempCheckpoint& files() const { return files_; }
  Tokenizer load() { return latentd::stages::load(write()); }
  Status failure() { return Tokenizer::load(write()).status(); }

  json rules;

 private:
  std::string write() {
    files_.write("tokenizer/tokenizer.json", rules.dump());
    return path();
  }

  TempCheckpoint files_;
};

TEST_CASE("tokenizer: with byte fallback, unknown characters are spelled in bytes", "[text]") {
  const Oracle oracle = testing::trimmedOracle();
  EditedTokenizer edited;
  edited.rules["model"]["byte_fallback"] = true;
  const Tokenizer tokenizer = edited.load();
  const Golden golden(oracle, "wan21-t2v/tokens");
  const auto prompts = testing::readPrompts(oracle, "wan21-t2v");
  for (const std::string name : {"emoji_oov", "chinese", "plain"}) {
    INFO(name);
    CHECK(encode(tokenizer, testing::promptNamed(prompts, name).clean) == idsOf(golden.tensor(name + ".ids_sp_512")));
  }
}

TEST_CASE("tokenizer: added tokens are found first, the longest one, and each part starts a word", "[text]") {
  EditedTokenizer edited;
  edited.rules["added_tokens"].push_back({{"content", "<pad><pad>"}, {"id", 700}});
  const Tokenizer tokenizer = edited.load();
  Ids cat = encode(tokenizer, "cat");
  cat.pop_back();
  CHECK(encode(tokenizer, "cat<pad>cat") == join({cat, {0}, cat, {1}}));
  CHECK(encode(tokenizer, "cat <pad> cat") == join({cat, {0}, cat, {1}}));
  CHECK(encode(tokenizer, "<pad><pad><pad>cat") == join({{700, 0}, cat, {1}}));
  CHECK(encode(tokenizer, "</s></s>") == Ids{1, 1, 1});
}

TEST_CASE("tokenizer: a long text is cut before its end mark", "[text]") {
  const Tokenizer tokenizer = load(testing::trimmedOracle().checkpoint("wan21-t2v") + "/tokenizer");
  const Ids whole = encode(tokenizer, "a cat walks slowly along a quiet beach");
  REQUIRE(whole.size() > 8);
  for (size_t length_max = 1; length_max <= whole.size() + 1; ++length_max) {
    Ids expected = whole;
    if (length_max < whole.size()) {
      expected.resize(length_max - 1);
      expected.push_back(1);
    }
    INFO(length_max);
    CHECK(encode(tokenizer, "a cat walks slowly along a quiet beach", length_max) == expected);
  }
  CHECK(encode(tokenizer, "", 1) == Ids{1});
}

TEST_CASE("tokenizer: an id of its own for the unknown is taken from tokenizer.json", "[text]") {
  EditedTokenizer edited;
  edited.rules["model"]["unk_id"] = 2;
  const Tokenizer tokenizer = edited.load();
  const Ids ids = encode(tokenizer, "\U0001F408");
  CHECK(ids.at(ids.size() - 2) == 2);
}

TEST_CASE("tokenizer: a file that is missing or damaged is named", "[text]") {
  const EditedTokenizer whole;
  const std::string model = testing::readFile(whole.path() + "/spiece.model");
  const std::string rules = testing::readFile(whole.path() + "/tokenizer.json");
  SECTION("no tokenizer.json") {
    whole.files().remove("tokenizer/tokenizer.json");
    const Status status = Tokenizer::load(whole.path()).status();
    CHECK(status.code() == absl::StatusCode::kNotFound);
    CHECK(mentions(status, "tokenizer.json"));
  }
  SECTION("no spiece.model") {
    whole.files().remove("tokenizer/spiece.model");
    const Status status = Tokenizer::load(whole.path()).status();
    CHECK(status.code() == absl::StatusCode::kNotFound);
    CHECK(mentions(status, "spiece.model"));
  }
  SECTION("bad JSON") {
    whole.files().write("tokenizer/tokenizer.json", rules.substr(0, rules.size() / 2));
    CHECK(mentions(Tokenizer::load(whole.path()).status(), "not valid JSON"));
  }
  SECTION("a folder in place of the model") {
    whole.files().remove("tokenizer/spiece.model");
    std::filesystem::create_directory(whole.path() + "/spiece.model");
    CHECK(mentions(Tokenizer::load(whole.path()).status(), "spiece.model"));
  }
  SECTION("a model cut off at any place") {
    // Cut between two pieces it is well formed, and has too few.
    for (size_t size = 0; size < model.size(); size += 1 + model.size() / 97) {
      whole.files().write("tokenizer/spiece.model", model.substr(0, size));
      INFO(size);
      CHECK(mentions(Tokenizer::load(whole.path()).status(), "spiece.model"));
    }
  }
  SECTION("a model that is text") {
    whole.files().write("tokenizer/spiece.model", "version https://example.invalid/spec/v1\n");
    CHECK(mentions(Tokenizer::load(whole.path()).status(), "not a sentencepiece model"));
  }
}

TEST_CASE("tokenizer: what it cannot reproduce is refused by key", "[text]") {
  EditedTokenizer edited;
  json& rules = edited.rules;
  std::string key;
  SECTION("model") {
    rules["model"]["type"] = "BPE";
    key = "model.type is \"BPE\"";
  }
  SECTION("unknown id") {
    rules["model"]["unk_id"] = 1 << 20;
    key = "model.unk_id";
  }
  SECTION("vocabulary") {
    rules["model"]["vocab"][5] = "piece";
    key = "model.vocab";
  }
  SECTION("another vocabulary") {
    rules["model"]["vocab"][300][0] = "other";
    key = "id 300 is \"other\"";
  }
  SECTION("normalizer") {
    rules["normalizer"]["normalizers"].push_back({{"type", "Lowercase"}});
    key = "normalizer";
  }
  SECTION("no normalizer") {
    rules["normalizer"] = nullptr;
    key = "normalizer";
  }
  SECTION("pre-tokenizer") {
    rules["pre_tokenizer"]["prepend_scheme"] = "first";
    key = "pre_tokenizer";
  }
  SECTION("end") {
    rules["post_processor"]["single"].push_back(rules["post_processor"]["single"][1]);
    key = "post_processor";
  }
  SECTION("added tokens of words") {
    rules["added_tokens"][0]["single_word"] = true;
    key = "added_tokens";
  }
  const Status status = edited.failure();
  INFO(status.ToString());
  CHECK(mentions(status, edited.path()));
  CHECK(mentions(status, key));
}

}  // namespace
}  // namespace latentd::stages
