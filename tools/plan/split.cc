#include "tools/plan/split.h"

#include <fmt/format.h>

namespace latentd::plan {

std::string toString(const Split& split) {
  std::string text;
  for (const mesh::MeshDim dim : mesh::kMeshDims) {
    const uint32_t degree = split.degrees.of(dim);
    if (degree > 1) text += fmt::format("{}{} {}", text.empty() ? "" : " x ", mesh::toString(dim), degree);
  }
  return text.empty() ? "one GPU" : text;
}

}  // namespace latentd::plan
