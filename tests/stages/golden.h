#pragma once

#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <nlohmann/json_fwd.hpp>

#include "stages/weights/safetensors.h"
#include "tests/support/catch.h"

namespace latentd::stages::testing {

// A directory with checkpoints/ and golden/, as the reference wrote them.
struct Oracle {
  std::string name;  // "trimmed" (in the tree) or "full" (LATENTD_ORACLE)
  std::string path;

  std::string checkpoint(const std::string& model) const { return path + "/checkpoints/" + model; }
  bool has(const std::string& relative) const;
  // Files golden/MODEL/PREFIX*.safetensors, relative to golden/, without the extension, sorted.
  std::vector<std::string> goldens(const std::string& model, const std::string& prefix) const;
};

// The set in the tree, which is always there.
Oracle trimmedOracle();
// The trimmed set and the full one if LATENTD_ORACLE names it; else says that it is skipped.
std::vector<Oracle> oracles();

// The tensors of one golden file. A missing file or tensor fails the test.
class Golden {
 public:
  // relative: below golden/, without extension, such as "wan21-t2v/transformer".
  Golden(const Oracle& oracle, const std::string& relative);

  bool has(const std::string& name) const;
  at::Tensor tensor(const std::string& name) const;
  std::vector<std::string> names() const;
  nlohmann::json meta() const;

 private:
  std::shared_ptr<const SafetensorsFile> file_;
};

// Of a tensor on any device from one on any other. Infinity for different shapes and where either is NaN.
double maxAbsDifference(const at::Tensor& actual, const at::Tensor& expected);
double rmsDifference(const at::Tensor& actual, const at::Tensor& expected);
// Same shape, dtype and bits.
bool identical(const at::Tensor& actual, const at::Tensor& expected);

// "" if OK, else its text: REQUIRE(problem(status) == "").
std::string problem(const Status& status);

}  // namespace latentd::stages::testing
