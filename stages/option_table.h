#pragma once

#include <charconv>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/base/status_field.h"

// The `options:` of a group, as its stage documents and reads them: one table does both.
namespace latentd::stages {

// One option as it is told to people.
struct OptionSpec {
  std::string name;
  std::string valid;          // what follows "is not": "an integer from 1 to 256"
  std::string default_value;  // as it would be written
  std::string meaning;
  // What of the group it takes to matter, one of: "parallel.ring" (above 1), "options.tile_height" (given, and not its
  // default), "method.source"; none: nothing.
  std::vector<std::string> matters_with = {};
  // In the same words, each of what leaves nothing for it to say.
  std::vector<std::string> idle_with = {};
};

// One option and how its text becomes a field. set: false if the text is none of `valid`.
template <class Options>
struct Option {
  OptionSpec spec;
  std::function<bool(Options&, const std::string&)> set;
};

template <class Options>
using OptionTable = std::vector<Option<Options>>;

// A decimal integer in [low, high].
template <class Options, class Field>
Option<Options> integerOption(std::string name, Field Options::*field, int64_t low, int64_t high, std::string fallback,
                              std::string meaning, std::vector<std::string> matters_with = {}) {
  OptionSpec spec{std::move(name), "an integer from " + std::to_string(low) + " to " + std::to_string(high),
                  std::move(fallback), std::move(meaning), std::move(matters_with)};
  return {std::move(spec), [=](Options& options, const std::string& text) {
            int64_t value = 0;
            const char* end = text.data() + text.size();
            const auto [stop, error] = std::from_chars(text.data(), end, value);
            if (error != std::errc() || stop != end || value < low || value > high) return false;
            options.*field = static_cast<Field>(value);
            return true;
          }};
}

template <class Options>
std::vector<OptionSpec> describeOptions(const OptionTable<Options>& table) {
  std::vector<OptionSpec> specs;
  for (const Option<Options>& option : table)
    specs.push_back(option.spec);
  return specs;
}

// `parsed` with what is given. INVALID_ARGUMENT names the option, the text and what is valid, and has the field
// "options.NAME".
template <class Options>
StatusOr<Options> parseOptions(std::string_view stage, const OptionTable<Options>& table,
                               const std::map<std::string, std::string>& given, Options parsed = {}) {
  for (const auto& [name, text] : given) {
    const Option<Options>* found = nullptr;
    std::string known;
    for (const Option<Options>& option : table) {
      if (option.spec.name == name) found = &option;
      known += (known.empty() ? "" : ", ") + option.spec.name;
    }
    const std::string field = "options." + name;
    if (found == nullptr) {
      const std::string has = table.empty() ? "none" : known;
      return atField(
          absl::InvalidArgumentError("stage " + std::string(stage) + " has no option \"" + name + "\"; it has: " + has),
          field);
    }
    if (!found->set(parsed, text)) {
      return atField(absl::InvalidArgumentError("option " + name + ": \"" + text + "\" is not " + found->spec.valid),
                     field);
    }
  }
  return parsed;
}

}  // namespace latentd::stages
