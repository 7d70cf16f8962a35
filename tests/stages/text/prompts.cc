#include "tests/stages/text/prompts.h"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/support/catch.h"

namespace latentd::stages::testing {

std::vector<std::string> textModels(const Oracle& oracle) {
  std::vector<std::string> models;
  for (const std::string model : {"wan21-t2v", "wan22-a14b", "wan22-ti2v-5b", "wan21-i2v"}) {
    if (oracle.has("golden/" + model + "/prompts.json")) models.push_back(model);
  }
  REQUIRE_FALSE(models.empty());
  return models;
}

std::vector<PromptCase> readPrompts(const Oracle& oracle, const std::string& model) {
  std::ifstream file(oracle.path + "/golden/" + model + "/prompts.json");
  std::vector<PromptCase> prompts;
  for (const auto& entry : nlohmann::json::parse(file)) {
    prompts.push_back({entry.at("name"), entry.at("prompt"), entry.at("clean"), entry.at("clean_no_ftfy")});
  }
  REQUIRE_FALSE(prompts.empty());
  return prompts;
}

PromptCase promptNamed(const std::vector<PromptCase>& prompts, const std::string& name) {
  const auto found =
      std::find_if(prompts.begin(), prompts.end(), [&](const auto& entry) { return entry.name == name; });
  INFO("prompt " << name);
  REQUIRE(found != prompts.end());
  return *found;
}

bool mentions(const Status& status, const std::string& text) {
  return !status.ok() && messageOf(status).find(text) != std::string::npos;
}

}  // namespace latentd::stages::testing
