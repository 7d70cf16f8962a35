#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "channel/channel.h"

namespace latentd::channel {

// A half-open range of indexes along one dimension.
struct Range {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
  friend bool operator==(const Range&, const Range&) = default;
};

// Part `index` of `extent` elements cut into `parts`: the first `extent % parts` parts have one more (array_split).
Range splitRange(int64_t extent, uint32_t parts, uint32_t index);

// A strided box to copy: from the dense row-major part that one producer rank published into this rank's target.
// Offsets and strides in elements. Any layout of runs can be said this way: a transfer is a list of boxes.
struct CopyRegion {
  uint32_t source_rank = 0;
  int64_t source_offset = 0;
  int64_t target_offset = 0;
  std::vector<int64_t> extents;
  std::vector<int64_t> source_strides;
  std::vector<int64_t> target_strides;
  std::vector<int64_t> target_begin;  // index of the box's first element in the target
};

// What one consumer rank reads of one leaf.
struct LeafPlan {
  std::vector<int64_t> shape;       // of this rank's part
  std::vector<CopyRegion> regions;  // disjoint, covering the part; target strides are those of a dense tensor
};

// What every producer rank holds of one leaf, in rank order.
struct LeafSource {
  std::vector<int64_t> shape;
  bool whole = false;
};

// Which elements of which producer rank make up the part of consumer rank `rank`: the overlaps, and nothing else.
// Producer parts are laid end to end along producer_shard_dim and may have any sizes. INVALID_ARGUMENT when the ranks'
// shapes do not fit together. With one source nothing is put together.
StatusOr<LeafPlan> planLeaf(const std::vector<LeafSource>& sources, const ChannelSpec& spec, Rank rank);

// Elements that a plan copies.
int64_t plannedElements(const LeafPlan& plan);

// `dim` counted from the front; empty when a tensor of `dimensions` has no such dimension.
std::optional<size_t> resolveDim(std::optional<int32_t> dim, size_t dimensions);

}  // namespace latentd::channel
