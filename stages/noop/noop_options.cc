#include "stages/noop/noop_options.h"

#include <charconv>
#include <functional>
#include <optional>
#include <sstream>

namespace latentd::stages {
namespace {

using Options = NoopOptions;

std::optional<int64_t> parseInteger(const std::string& text, int64_t low, int64_t high) {
  int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end || value < low || value > high) return std::nullopt;
  return value;
}

std::vector<std::string> splitAtCommas(const std::string& text) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, ',');) {
    if (!part.empty()) parts.push_back(part);
  }
  return parts;
}

// One key: how its text becomes a field. False: the text is none of `valid`.
struct Key {
  std::string valid;
  std::function<bool(Options&, const std::string&)> set;
};

template <class Field>
Key integerKey(Field Options::*field, int64_t low, int64_t high) {
  return {"an integer from " + std::to_string(low) + " to " + std::to_string(high),
          [=](Options& options, const std::string& text) {
            const auto value = parseInteger(text, low, high);
            if (value) options.*field = static_cast<Field>(*value);
            return value.has_value();
          }};
}

Key textKey(std::string Options::*field) {
  return {"any text", [=](Options& options, const std::string& text) {
            options.*field = text;
            return true;
          }};
}

std::map<std::string, Key> makeKeys() {
  constexpr int64_t kBytesMax = int64_t{1} << 40;
  constexpr int64_t kCountMax = 1'000'000;
  constexpr int64_t kLeavesMax = 256;      // of the same order as the tensors of a real artifact
  constexpr int64_t kTimeMax = 3'600'000;  // an hour
  return {
      {"bytes", integerKey(&Options::bytes, 1, kBytesMax)},
      {"bytes_per_frame", integerKey(&Options::bytes_per_frame, 0, kBytesMax)},
      {"leaves", integerKey(&Options::leaves, 1, kLeavesMax)},
      {"dtype",
       {"a dtype such as float32, bfloat16, uint8",
        [](Options& options, const std::string& text) {
          options.dtype = parseDType(text).value_or(DType::kInvalid);
          return options.dtype != DType::kInvalid;
        }}},
      {"steps", integerKey(&Options::steps, 0, kCountMax)},
      {"step_ms", integerKey(&Options::step_time, 0, kTimeMax)},
      {"load_ms", integerKey(&Options::load_time, 0, kTimeMax)},
      {"warm_up_ms", integerKey(&Options::warm_up_time, 0, kTimeMax)},
      {"frames", integerKey(&Options::frames, 0, kCountMax)},
      {"weight_bytes", integerKey(&Options::weight_bytes, 0, kBytesMax)},
      {"input_keys",
       {"names separated by commas",
        [](Options& options, const std::string& text) {
          options.input_keys = splitAtCommas(text);
          return !options.input_keys.empty();
        }}},
      {"output_key", textKey(&Options::output_key)},
      {"fail_at_step", integerKey(&Options::fail_at_step, -1, kCountMax)},
      {"crash_at_step", integerKey(&Options::crash_at_step, -1, kCountMax)},
      {"allocate_bytes", integerKey(&Options::allocate_bytes, 0, kBytesMax)},
      {"only_prompt", textKey(&Options::only_prompt)},
      {"fail_load",
       {"true or false",
        [](Options& options, const std::string& text) {
          options.fail_load = text == "true";
          return text == "true" || text == "false";
        }}},
  };
}

}  // namespace

StatusOr<NoopOptions> parseNoopOptions(const std::map<std::string, std::string>& options, DType group_dtype) {
  const std::map<std::string, Key> keys = makeKeys();
  NoopOptions parsed;
  parsed.dtype = group_dtype;
  for (const auto& [name, text] : options) {
    const auto key = keys.find(name);
    if (key == keys.end()) {
      std::string known;
      for (const auto& [other, unused] : keys)
        known += (known.empty() ? "" : ", ") + other;
      return absl::InvalidArgumentError("stage noop has no option \"" + name + "\"; it has: " + known);
    }
    if (!key->second.set(parsed, text)) {
      return absl::InvalidArgumentError("option " + name + ": \"" + text + "\" is not " + key->second.valid);
    }
  }
  return parsed;
}

}  // namespace latentd::stages
