#include "stages/weights/model_config.h"

#include <fmt/format.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

namespace latentd::stages {
namespace {

using nlohmann::json;

// A configuration is a few KiB; anything near this is another file by mistake.
constexpr size_t kBytesMax = 16 << 20;
// How much of a value an error message shows.
constexpr size_t kShownMax = 80;

std::string shown(const json& value) {
  std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  if (text.size() > kShownMax) text = text.substr(0, kShownMax) + "...";
  return text;
}

bool isSet(const json& value) {
  return !(value.is_null() || (value.is_boolean() && !value.get<bool>()) || (value.is_structured() && value.empty()));
}

bool isPositive(const json& value) {
  return value.is_number_unsigned() && value.get<uint64_t>() > 0 && value.get<uint64_t>() <= INT64_MAX;
}

bool isFinite(const json& value) { return value.is_number() && std::isfinite(value.get<double>()); }

constexpr std::string_view kPositive = "an integer of at least 1";
constexpr std::string_view kNumber = "a number";
constexpr std::string_view kText = "a string";

}  // namespace

ModelConfig::ModelConfig(std::string path, std::shared_ptr<const json> root)
    : path_(std::move(path)), root_(std::move(root)) {}

StatusOr<ModelConfig> ModelConfig::read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return errnoStatus(errno, "cannot open " + path);
  std::ostringstream read;
  read << file.rdbuf();
  if (read.bad()) return errnoStatus(errno, "cannot read " + path);
  const std::string text = read.str();
  if (text.size() > kBytesMax) {
    return absl::InvalidArgumentError(
        fmt::format("{}: {} bytes, expected a configuration of at most {} bytes", path, text.size(), kBytesMax));
  }
  json root;
  try {
    root = json::parse(text);
  } catch (const json::exception& error) {
    return absl::InvalidArgumentError(fmt::format("{}: not valid JSON: {}", path, error.what()));
  }
  if (!root.is_object()) {
    return absl::InvalidArgumentError(fmt::format("{}: holds {}, expected a JSON object", path, shown(root)));
  }
  return ModelConfig(path, std::make_shared<const json>(std::move(root)));
}

bool ModelConfig::has(std::string_view key) const {
  const auto found = root_->find(std::string(key));
  return found != root_->end() && !found->is_null();
}

const json* ModelConfig::find(std::string_view key) {
  known_.emplace(key);
  const auto found = root_->find(std::string(key));
  return found == root_->end() || found->is_null() ? nullptr : &*found;
}

const json* ModelConfig::need(std::string_view key, std::string_view expected) {
  const json* value = find(key);
  if (value == nullptr && problem_.ok()) {
    problem_ = absl::InvalidArgumentError(fmt::format("{}: key \"{}\" is missing, expected {}", path_, key, expected));
  }
  return value;
}

void ModelConfig::refuse(std::string_view key, std::string_view expected) {
  if (!problem_.ok()) return;
  const auto found = root_->find(std::string(key));
  const std::string value = found == root_->end() ? "absent" : shown(*found);
  problem_ = absl::InvalidArgumentError(fmt::format("{}: {} = {}, expected {}", path_, key, value, expected));
}

void ModelConfig::refuseIfSet(std::string_view key, std::string_view expected) {
  const json* value = find(key);
  if (value != nullptr && isSet(*value)) refuse(key, expected);
}

void ModelConfig::ignore(std::initializer_list<std::string_view> keys) {
  for (std::string_view key : keys)
    known_.emplace(key);
}

int64_t ModelConfig::positive(std::string_view key) { return need(key, kPositive) == nullptr ? 0 : positive(key, 0); }

int64_t ModelConfig::positive(std::string_view key, int64_t fallback) {
  const json* value = find(key);
  if (value == nullptr) return fallback;
  if (isPositive(*value)) return value->get<int64_t>();
  refuse(key, kPositive);
  return fallback;
}

double ModelConfig::number(std::string_view key) { return need(key, kNumber) == nullptr ? 0 : number(key, 0); }

double ModelConfig::number(std::string_view key, double fallback) {
  const json* value = find(key);
  if (value == nullptr) return fallback;
  if (isFinite(*value)) return value->get<double>();
  refuse(key, kNumber);
  return fallback;
}

bool ModelConfig::flag(std::string_view key, bool fallback) {
  const json* value = find(key);
  if (value == nullptr) return fallback;
  if (value->is_boolean()) return value->get<bool>();
  refuse(key, "true or false");
  return fallback;
}

std::string ModelConfig::text(std::string_view key) {
  return need(key, kText) == nullptr ? std::string() : text(key, "");
}

std::string ModelConfig::text(std::string_view key, std::string_view fallback) {
  const json* value = find(key);
  if (value == nullptr) return std::string(fallback);
  if (value->is_string()) return value->get<std::string>();
  refuse(key, kText);
  return std::string(fallback);
}

template <class Item, class Accept>
std::vector<Item> ModelConfig::list(std::string_view key, size_t size, std::string_view expected, Accept accept) {
  const std::string whole =
      size == 0 ? fmt::format("a list of {}", expected) : fmt::format("a list of {} {}", size, expected);
  const json* value = need(key, whole);
  std::vector<Item> items;
  if (value == nullptr) return items;
  bool valid = value->is_array() && (size == 0 || value->size() == size);
  if (valid) {
    for (const json& item : *value)
      valid = valid && accept(item);
  }
  if (!valid) {
    refuse(key, whole);
    return items;
  }
  for (const json& item : *value)
    items.push_back(item.get<Item>());
  return items;
}

std::vector<int64_t> ModelConfig::integers(std::string_view key, size_t size) {
  return list<int64_t>(key, size, "integers of at least 1", isPositive);
}

std::vector<double> ModelConfig::numbers(std::string_view key, size_t size) {
  return list<double>(key, size, "numbers", isFinite);
}

std::vector<bool> ModelConfig::flags(std::string_view key, size_t size) {
  return list<bool>(key, size, "true or false", [](const json& item) { return item.is_boolean(); });
}

std::map<std::string, std::string> ModelConfig::texts(std::string_view key) {
  constexpr std::string_view kExpected = "an object of strings";
  const json* value = need(key, kExpected);
  std::map<std::string, std::string> entries;
  if (value == nullptr) return entries;
  bool valid = value->is_object();
  if (valid) {
    for (const json& item : *value)
      valid = valid && item.is_string();
  }
  if (!valid) {
    refuse(key, kExpected);
    return entries;
  }
  for (const auto& [name, item] : value->items())
    entries[name] = item.get<std::string>();
  return entries;
}

std::optional<std::string> ModelConfig::componentClass(std::string_view component) {
  const json* value = find(component);
  if (value == nullptr) return std::nullopt;
  if (value->is_array() && value->size() == 2) {
    const json& name = (*value)[1];
    if (name.is_null()) return std::nullopt;
    if (name.is_string()) return name.get<std::string>();
  }
  refuse(component, "[\"library\", \"Class\"]");
  return std::nullopt;
}

Status ModelConfig::finish() const {
  LATENTD_RETURN_IF_ERROR(problem_);
  for (const auto& [key, value] : root_->items()) {
    if (key.starts_with("_") || known_.contains(key) || !isSet(value)) continue;
    return absl::UnimplementedError(
        fmt::format("{}: {} = {}: this key is not known here and might change the model; remove it if it does not",
                    path_, key, shown(value)));
  }
  return absl::OkStatus();
}

Status checkComponentClass(ModelConfig& index, std::string_view component, std::string_view class_name) {
  const std::optional<std::string> found = index.componentClass(component);
  LATENTD_RETURN_IF_ERROR(index.status());
  if (found == class_name) return absl::OkStatus();
  return absl::FailedPreconditionError(fmt::format("{}: {} is {}, this stage serves {} only", index.path(), component,
                                                   found.value_or("absent"), class_name));
}

}  // namespace latentd::stages
