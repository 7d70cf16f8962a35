#include "stages/text/prompt_clean.h"

#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "stages/text/text_repair.h"
#include "stages/text/unicode_text.h"
#include "tests/stages/text/prompts.h"

namespace latentd::stages {
namespace {

using testing::mentions;
using testing::oracles;
using testing::problem;

std::string cleaned(std::string_view prompt, PromptCleaning cleaning) {
  const auto clean = cleanPrompt(prompt, cleaning);
  REQUIRE(problem(clean.status()) == "");
  return *clean;
}

TEST_CASE("prompt_clean: every golden prompt is cleaned as the reference does", "[text][golden]") {
  for (const testing::Oracle& oracle : oracles()) {
    for (const std::string& model : testing::textModels(oracle)) {
      for (const testing::PromptCase& prompt : testing::readPrompts(oracle, model)) {
        INFO(oracle.name << " " << model << " " << prompt.name);
        CHECK(cleaned(prompt.prompt, PromptCleaning::kFtfy) == prompt.clean);
        CHECK(cleaned(prompt.prompt, PromptCleaning::kBasic) == prompt.clean_without_ftfy);
      }
    }
  }
}

TEST_CASE("prompt_clean: broken and odd texts are cleaned as the reference does", "[text]") {
  std::ifstream file("tests/data/text/cleaning.json");
  const auto corpus = nlohmann::json::parse(file);
  REQUIRE(corpus.size() > 400);
  for (const auto& entry : corpus) {
    const auto text = entry.at("text").get<std::string>();
    INFO(entry.dump());
    CHECK(cleaned(text, PromptCleaning::kFtfy) == entry.at("ftfy").get<std::string>());
    CHECK(cleaned(text, PromptCleaning::kBasic) == entry.at("basic").get<std::string>());
  }
}

// Characters in the mix that breaks things: of all planes, of the single-byte range, of markup and control sequences.
std::u32string randomText(std::mt19937& random) {
  const auto below = [&](uint32_t end) { return std::uniform_int_distribution<uint32_t>(0, end - 1)(random); };
  std::u32string text;
  for (uint32_t length = below(40); text.size() < length;) {
    constexpr std::u32string_view kMarkup = U"&#x;<>abcltgamp0123 [m\x1B";
    switch (below(4)) {
      case 0:
        text.push_back(kMarkup[below(kMarkup.size())]);
        break;
      case 1:
        text.push_back(below(0x180));
        break;
      case 2:
        text.push_back(0xC0 + below(0x36));
        text.push_back(0x80 + below(0x40));
        break;
      default:
        text.push_back(below(0x110000));
    }
    if (text.back() >= 0xD800 && text.back() <= 0xDFFF) text.back() = U'?';
  }
  return text;
}

TEST_CASE("prompt_clean: any text becomes valid, spaced by single spaces, and stays as it is when mended again",
          "[text][fuzz]") {
  std::mt19937 random(20240607);  // fixed, so that a failure repeats
  for (int i = 0; i < 20000; ++i) {
    const std::u32string text = randomText(random);
    const std::string bytes = encodeUtf8(text);
    INFO(nlohmann::json(bytes).dump(-1, ' ', true));
    for (const PromptCleaning cleaning : {PromptCleaning::kFtfy, PromptCleaning::kBasic}) {
      const std::string clean = cleaned(bytes, cleaning);
      REQUIRE(decodeUtf8(clean).has_value());
      REQUIRE(clean.find("  ") == std::string::npos);
      if (!clean.empty()) {
        REQUIRE(clean.front() != ' ');
        REQUIRE(clean.back() != ' ');
      }
    }
    // Only within a line: a line break that mending makes lets the halves be judged apart.
    const std::u32string repaired = repairText(text);
    if (repaired.find(U'\n') == std::u32string::npos) {
      REQUIRE(repairText(repaired) == repaired);
      REQUIRE(normalize(repaired, NormalForm::kComposed) == repaired);
    }
  }
}

TEST_CASE("prompt_clean: the longest prompts end in time, however nested", "[text]") {
  for (const std::string level : {"amp;", "AMP;", "#38;", "#x26;", "&#97;mp;"}) {
    std::string references = "\u00E9 &";
    while (references.size() < 65000)
      references += level;
    INFO(level);
    CHECK(cleaned(references, PromptCleaning::kFtfy) == "\u00E9 &");
  }
  std::u32string text = U"\u00E9";
  // Each round of misreading as Latin-1 doubles the text.
  while (text.size() < 4096) {
    const std::string bytes = encodeUtf8(text);
    text.assign(bytes.begin(), bytes.end());
    for (char32_t& c : text)
      c &= 0xFF;
  }
  CHECK(cleaned(encodeUtf8(text), PromptCleaning::kFtfy) == "\u00E9");
}

TEST_CASE("prompt_clean: what is no prompt is refused with its place", "[text]") {
  constexpr size_t kMax = 16;
  CHECK(checkPrompt("a cat", "prompt", kMax).ok());
  CHECK(checkPrompt("", "prompt", kMax).ok());
  const std::vector<std::pair<std::string, std::string>> refused = {
      {"12345678901234567", "prompt has 17 bytes, expected at most 16"},
      {std::string("a\0b", 3), "prompt has a NUL at offset 1"},
      {"ab\xC3(", "prompt: byte 0xC3 at offset 2 is not valid UTF-8"},
      {"\xED\xA0\x80", "offset 0"},
      {"ok\xF4\x90\x80\x80", "offset 2"},
      {"\xC0\xAF", "offset 0"},
      {"cut \xE2\x82", "offset 4"},
  };
  for (const auto& [prompt, text] : refused) {
    const Status status = checkPrompt(prompt, "prompt", kMax);
    INFO(status.ToString());
    CHECK(status.code() == absl::StatusCode::kInvalidArgument);
    CHECK(mentions(status, text));
  }
  CHECK(cleanPrompt("\xFF", PromptCleaning::kFtfy).status().code() == absl::StatusCode::kInvalidArgument);
  CHECK(cleanPrompt("\xFF", PromptCleaning::kBasic).status().code() == absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace latentd::stages
