#include "tests/stages/golden.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

#include "stages/weights/checkpoint.h"

namespace latentd::stages::testing {
namespace {

namespace fs = std::filesystem;

// `bazel test` runs in the runfiles tree, a person in the working tree: both have this path.
constexpr const char* kTrimmedSet = "tests/data/oracle";

double reduceDifference(const at::Tensor& actual, const at::Tensor& expected, bool rms) {
  if (actual.sizes() != expected.sizes()) return std::numeric_limits<double>::infinity();
  const at::Tensor difference = actual.to(at::kCPU, at::kDouble).sub(expected.to(at::kCPU, at::kDouble));
  if (difference.isnan().any().item<bool>()) return std::numeric_limits<double>::infinity();
  return rms ? difference.square().mean().sqrt().item<double>() : difference.abs().max().item<double>();
}

}  // namespace

bool Oracle::has(const std::string& relative) const { return fs::exists(path + "/" + relative); }

std::vector<std::string> Oracle::goldens(const std::string& model, const std::string& prefix) const {
  std::vector<std::string> found;
  const std::string folder = path + "/golden/" + model;
  if (!fs::is_directory(folder)) return found;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::string stem = entry.path().stem().string();
    if (entry.path().extension() == ".safetensors" && stem.starts_with(prefix)) found.push_back(model + "/" + stem);
  }
  std::sort(found.begin(), found.end());
  return found;
}

Oracle trimmedOracle() { return {"trimmed", kTrimmedSet}; }

std::vector<Oracle> oracles() {
  std::vector<Oracle> found = {trimmedOracle()};
  const char* full = std::getenv("LATENTD_ORACLE");
  if (full != nullptr && fs::is_directory(full)) {
    found.push_back({"full", full});
  } else {
    WARN("skipped: the full golden set (LATENTD_ORACLE names no directory)");
  }
  return found;
}

Golden::Golden(const Oracle& oracle, const std::string& relative) {
  auto file = SafetensorsFile::open(oracle.path + "/golden/" + relative + ".safetensors");
  REQUIRE(problem(file.status()) == "");
  file_ = *file;
}

bool Golden::has(const std::string& name) const { return file_->entries().contains(name); }

at::Tensor Golden::tensor(const std::string& name) const {
  INFO(file_->path() << ": " << name);
  REQUIRE(has(name));
  return tensorOf(file_, file_->entries().at(name));
}

std::vector<std::string> Golden::names() const {
  std::vector<std::string> names;
  for (const auto& [name, entry] : file_->entries())
    names.push_back(name);
  return names;
}

nlohmann::json Golden::meta() const { return nlohmann::json::parse(file_->metadata().at("meta")); }

double maxAbsDifference(const at::Tensor& actual, const at::Tensor& expected) {
  return reduceDifference(actual, expected, false);
}

double rmsDifference(const at::Tensor& actual, const at::Tensor& expected) {
  return reduceDifference(actual, expected, true);
}

bool identical(const at::Tensor& actual, const at::Tensor& expected) {
  return actual.scalar_type() == expected.scalar_type() && actual.equal(expected);
}

std::string problem(const Status& status) { return status.ok() ? "" : status.ToString(); }

}  // namespace latentd::stages::testing
