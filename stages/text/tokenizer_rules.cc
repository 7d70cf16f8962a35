#include "stages/text/tokenizer_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "stages/text/file_bytes.h"

namespace latentd::stages {
namespace {

using nlohmann::json;

constexpr std::string_view kWordMark = "\u2581";
// How much of a value an error message shows.
constexpr size_t kShownMax = 80;

// The file being read, for messages.
struct Source {
  std::string path;

  Status refuse(std::string_view key, const json& value, std::string_view expected) const {
    std::string shown = value.dump(-1, ' ', true, json::error_handler_t::replace);
    if (shown.size() > kShownMax) shown = shown.substr(0, kShownMax) + "...";
    return absl::UnimplementedError(fmt::format("{}: {} is {}, expected {}", path, key, shown, expected));
  }
};

// A null value for anything that is not there.
const json& at(const json& value, const char* key) {
  static const json kAbsent;
  if (!value.is_object()) return kAbsent;
  const auto found = value.find(key);
  return found == value.end() ? kAbsent : *found;
}

std::string textAt(const json& value, const char* key) {
  const json& entry = at(value, key);
  return entry.is_string() ? entry.get<std::string>() : "";
}

// The steps of a normalizer or pre-tokenizer: the entries of a sequence, or the one step itself.
std::vector<json> stepsOf(const json& value, const char* sequence_key) {
  if (textAt(value, "type") != "Sequence") return {value};
  const json& steps = at(value, sequence_key);
  return steps.is_array() ? std::vector<json>(steps.begin(), steps.end()) : std::vector<json>{};
}

// sentencepiece's own normalization: its character map, no space at the ends, runs of space as one.
Status checkNormalizer(const Source& source, const json& normalizer) {
  bool mapped = false;
  for (const json& step : stepsOf(normalizer, "normalizers")) {
    const std::string type = textAt(step, "type");
    mapped = mapped || type == "Precompiled";
    const bool squeezes = type == "Replace" && at(step, "pattern") == json{{"Regex", " {2,}"}};
    if (type != "Precompiled" && type != "Strip" && !squeezes) {
      return source.refuse("normalizer", step, "Precompiled, Strip, or Replace of \" {2,}\"");
    }
  }
  return mapped ? absl::OkStatus() : source.refuse("normalizer", normalizer, "a Precompiled character map");
}

Status checkPreTokenizer(const Source& source, const json& pre_tokenizer) {
  bool marks = false;
  for (const json& step : stepsOf(pre_tokenizer, "pretokenizers")) {
    const std::string type = textAt(step, "type");
    if (type == "WhitespaceSplit") continue;
    const bool always = textAt(step, "prepend_scheme") == "always" ||
                        (!step.contains("prepend_scheme") && at(step, "add_prefix_space") == true);
    if (type != "Metaspace" || textAt(step, "replacement") != kWordMark || !always) {
      return source.refuse("pre_tokenizer", step, "WhitespaceSplit, or Metaspace that always puts U+2581 in front");
    }
    marks = true;
  }
  return marks ? absl::OkStatus() : source.refuse("pre_tokenizer", pre_tokenizer, "a Metaspace step");
}

// The one special token after the text.
StatusOr<int64_t> readEndId(const Source& source, const json& processor) {
  const json& single = at(processor, "single");
  if (single.is_array() && single.size() == 2 && single[0].contains("Sequence")) {
    const std::string end = textAt(at(single[1], "SpecialToken"), "id");
    const json& ids = at(at(at(processor, "special_tokens"), end.c_str()), "ids");
    if (ids.is_array() && ids.size() == 1 && ids[0].is_number_unsigned()) return ids[0].get<int64_t>();
  }
  return source.refuse("post_processor", processor, "a template of the text and one special token after it");
}

Status readAddedTokens(const Source& source, const json& tokens, TokenizerRules& rules) {
  if (!tokens.is_array()) return source.refuse("added_tokens", tokens, "a list");
  for (const json& token : tokens) {
    const std::string content = textAt(token, "content");
    const json& id = at(token, "id");
    if (content.empty() || !id.is_number_unsigned()) {
      return source.refuse("added_tokens", token, "an entry with content and id");
    }
    // lstrip and rstrip only take spaces that the pieces do not see either.
    if (at(token, "single_word") == true) return source.refuse("added_tokens", token, "\"single_word\": false");
    rules.added_tokens.push_back({content, id.get<int64_t>()});
  }
  return absl::OkStatus();
}

Status readModel(const Source& source, const json& model, TokenizerRules& rules) {
  if (textAt(model, "type") != "Unigram") return source.refuse("model.type", at(model, "type"), "\"Unigram\"");
  const json& unknown = at(model, "unk_id");
  if (!unknown.is_number_unsigned()) return source.refuse("model.unk_id", unknown, "an id");
  rules.unknown_id = unknown.get<int64_t>();
  rules.byte_fallback = at(model, "byte_fallback") == true;
  const json& vocabulary = at(model, "vocab");
  if (!vocabulary.is_array()) return source.refuse("model.vocab", vocabulary, "a list");
  rules.pieces.reserve(vocabulary.size());
  for (const json& entry : vocabulary) {
    if (!entry.is_array() || entry.size() != 2 || !entry[0].is_string()) {
      return source.refuse("model.vocab", entry, "a piece and its score");
    }
    rules.pieces.push_back(entry[0].get<std::string>());
  }
  if (static_cast<size_t>(rules.unknown_id) >= rules.pieces.size()) {
    return source.refuse("model.unk_id", unknown, fmt::format("an id below {}", rules.pieces.size()));
  }
  return absl::OkStatus();
}

}  // namespace

StatusOr<TokenizerRules> readTokenizerRules(const std::string& path) {
  LATENTD_ASSIGN_OR_RETURN(const std::string text, readFileBytes(path));
  json root;
  try {
    root = json::parse(text);
  } catch (const json::exception& error) {
    return absl::InvalidArgumentError(fmt::format("{}: not valid JSON: {}", path, error.what()));
  }
  const Source source{path};
  TokenizerRules rules;
  LATENTD_RETURN_IF_ERROR(readModel(source, at(root, "model"), rules));
  LATENTD_RETURN_IF_ERROR(readAddedTokens(source, at(root, "added_tokens"), rules));
  LATENTD_RETURN_IF_ERROR(checkNormalizer(source, at(root, "normalizer")));
  LATENTD_RETURN_IF_ERROR(checkPreTokenizer(source, at(root, "pre_tokenizer")));
  LATENTD_ASSIGN_OR_RETURN(rules.end_id, readEndId(source, at(root, "post_processor")));
  return rules;
}

}  // namespace latentd::stages
