#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "stages/stage.h"

namespace latentd::stages {

// The stages that a worker can run, by name. Filled by the worker's main (registerBuiltinStages); no static
// initialisers. Owner: the main. Thread: filled before any other thread starts, then read only.
class StageRegistry {
 public:
  // The name must be new.
  void add(const std::string& name, StageFactory factory);
  // NOT_FOUND names the known stages and has the field "stage".
  StatusOr<std::unique_ptr<Stage>> create(const std::string& name) const;
  std::vector<std::string> names() const;

 private:
  std::map<std::string, StageFactory> factories_;
};

}  // namespace latentd::stages
