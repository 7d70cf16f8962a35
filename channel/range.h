#pragma once

#include <cstdint>

namespace latentd::channel {

// A half-open range of indexes along one dimension.
struct Range {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
  friend bool operator==(const Range&, const Range&) = default;
};

// What is in both; empty (of size 0) if nothing is.
Range intersect(const Range& a, const Range& b);

// Part `index` of `extent` elements cut into `parts`: the first `extent % parts` parts have one more (array_split).
Range splitRange(int64_t extent, uint32_t parts, uint32_t index);

// The same in equal shares of ceil(extent / parts), of which the last ones are shorter, or empty: a sequence that is
// padded to equal shards, without the padding.
Range equalShare(int64_t extent, uint32_t parts, uint32_t index);

}  // namespace latentd::channel
