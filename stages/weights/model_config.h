#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "runtime/base/status.h"

namespace latentd::stages {

// One JSON file of a checkpoint (model_index.json, a component's config.json, scheduler_config.json), read key by key.
// The first problem sticks: a getter then returns its fallback (or zero), and status() tells file, key, value and what
// was expected. Getters without a fallback need the key. A null value counts as absent.
// Owner: a value type. Thread: one. Failure: sticky, see above.
class ModelConfig {
 public:
  static StatusOr<ModelConfig> read(const std::string& path);

  const std::string& path() const { return path_; }
  // Present and not null.
  bool has(std::string_view key) const;

  int64_t positive(std::string_view key);
  int64_t positive(std::string_view key, int64_t fallback);
  double number(std::string_view key);
  double number(std::string_view key, double fallback);
  bool flag(std::string_view key, bool fallback);
  std::string text(std::string_view key);
  std::string text(std::string_view key, std::string_view fallback);
  // `size` 0 accepts any length.
  std::vector<int64_t> integers(std::string_view key, size_t size = 0);
  std::vector<double> numbers(std::string_view key, size_t size = 0);
  std::vector<bool> flags(std::string_view key, size_t size = 0);
  std::map<std::string, std::string> texts(std::string_view key);

  // The class of a component in model_index.json (["library", "Class"]); absent for a missing key and for [null, null].
  std::optional<std::string> componentClass(std::string_view component);

  // Refuses a value that was read: "FILE: key = value, expected ...". Keeps the first.
  void refuse(std::string_view key, std::string_view expected);
  // Refuses the key if it is present with anything but null, false, an empty list or an empty object; for options whose
  // effect is not implemented.
  void refuseIfSet(std::string_view key, std::string_view expected);
  // Marks a key as known and without effect here.
  void ignore(std::initializer_list<std::string_view> keys);

  Status status() const { return problem_; }
  // status(), and if that is OK: a key that was neither read nor ignored, does not begin with "_" and is set (see
  // refuseIfSet) is an error, because it might change the model.
  Status finish() const;

 private:
  ModelConfig(std::string path, std::shared_ptr<const nlohmann::json> root);

  // The value of a key, or null; notes that the key was read.
  const nlohmann::json* find(std::string_view key);
  // As find, and an absent key is a problem.
  const nlohmann::json* need(std::string_view key, std::string_view expected);
  template <class Item, class Accept>
  std::vector<Item> list(std::string_view key, size_t size, std::string_view expected, Accept accept);

  std::string path_;
  std::shared_ptr<const nlohmann::json> root_;
  std::set<std::string, std::less<>> known_;
  Status problem_;
};

// FAILED_PRECONDITION if model_index.json does not give the component this class.
Status checkComponentClass(ModelConfig& index, std::string_view component, std::string_view class_name);

}  // namespace latentd::stages
