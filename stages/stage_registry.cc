#include "stages/stage_registry.h"

#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/status_field.h"

namespace latentd::stages {

void StageRegistry::add(const std::string& name, StageFactory factory) {
  const bool added = factories_.emplace(name, std::move(factory)).second;
  LATENTD_CHECK(added, "stage registered twice: " + name);
}

StatusOr<std::unique_ptr<Stage>> StageRegistry::create(const std::string& name) const {
  const auto found = factories_.find(name);
  if (found != factories_.end()) return found->second();
  std::string known;
  for (const auto& [other, factory] : factories_)
    known += (known.empty() ? "" : ", ") + other;
  return atField(absl::NotFoundError("stage \"" + name + "\" is none of: " + known), "stage");
}

std::vector<std::string> StageRegistry::names() const {
  std::vector<std::string> names;
  for (const auto& [name, factory] : factories_)
    names.push_back(name);
  return names;
}

}  // namespace latentd::stages
