#include "channel/copy_box.h"

#include <algorithm>

#include "runtime/base/check.h"

namespace latentd::channel {

CopyBox makeCopyBox(std::span<const int64_t> target_strides, std::span<const int64_t> source_strides,
                    std::span<const int64_t> extents) {
  LATENTD_CHECK(extents.size() <= kDimensionsMax && target_strides.size() == extents.size() &&
                    source_strides.size() == extents.size(),
                "a box has one stride for each dimension and side");
  CopyBox sorted;
  for (size_t d = 0; d < extents.size(); ++d) {
    sorted.empty = sorted.empty || extents[d] == 0;
    if (extents[d] != 1) sorted.dimensions[sorted.count++] = {extents[d], target_strides[d], source_strides[d]};
  }
  std::stable_sort(sorted.dimensions.begin(), sorted.dimensions.begin() + sorted.count,
                   [](const CopyDimension& a, const CopyDimension& b) { return a.target > b.target; });
  CopyBox joined;
  joined.empty = sorted.empty;
  for (size_t d = 0; d < sorted.count; ++d) {
    const CopyDimension& inner = sorted.dimensions[d];
    if (joined.count > 0) {
      CopyDimension& outer = joined.dimensions[joined.count - 1];
      if (outer.target == inner.extent * inner.target && outer.source == inner.extent * inner.source) {
        outer = {outer.extent * inner.extent, inner.target, inner.source};
        continue;
      }
    }
    joined.dimensions[joined.count++] = inner;
  }
  return joined;
}

}  // namespace latentd::channel
