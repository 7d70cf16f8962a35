#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "channel/channel.h"
#include "channel/range.h"
#include "channel/token_grid.h"

namespace latentd::channel {

// A strided box to copy: from the dense row-major part that one producer rank published into this rank's target.
// Offsets and strides in elements. Any layout of runs can be said this way: a transfer is a list of boxes.
struct CopyRegion {
  uint32_t source_rank = 0;
  int64_t source_offset = 0;
  int64_t target_offset = 0;
  std::vector<int64_t> extents;
  std::vector<int64_t> source_strides;
  std::vector<int64_t> target_strides;
  std::vector<int64_t> target_begin;  // index of the box's first element in the target, by dimension of the tensor

  // Of a stack of runs of tokens, which has a dimension more than the tensor, in front: its next index is so many
  // tokens further along dimension `dim` of the target.
  struct Stack {
    uint32_t dim = 0;
    int64_t target_step = 0;
  };
  std::optional<Stack> stack;

  // Points it at a target of these strides: sets target_offset and target_strides.
  void aimAt(const std::vector<int64_t>& strides);
};

// What one consumer rank reads of one leaf.
struct LeafPlan {
  std::vector<int64_t> shape;       // of this rank's part
  std::vector<CopyRegion> regions;  // disjoint, covering the part; target strides are those of a dense tensor
  std::optional<TokenPart> tokens;  // what of its grid the part is

  // One strided tensor in one rank's slot is all of it.
  bool isOnePiece() const { return regions.empty() || (regions.size() == 1 && !regions[0].stack); }
};

// What every producer rank holds of one leaf, in rank order.
struct LeafSource {
  std::vector<int64_t> shape;
  bool whole = false;
  std::optional<TokenPart> tokens;  // checkTokenPart() holds
};

// Which elements of which producer rank make up the part of consumer rank `rank`: the overlaps, and nothing else.
// Producer parts are laid end to end along producer_shard_dim and may have any sizes. INVALID_ARGUMENT when the ranks'
// shapes do not fit together. With one source nothing is put together. Parts of a token grid follow producer_tokens and
// consumer_tokens instead: they have any sizes, tile the grid in the order of ranks, and are read run by run.
StatusOr<LeafPlan> planLeaf(const std::vector<LeafSource>& sources, const ChannelSpec& spec, Rank rank);

// Elements that a plan copies.
int64_t plannedElements(const LeafPlan& plan);

// `dim` counted from the front; empty when a tensor of `dimensions` has no such dimension.
std::optional<size_t> resolveDim(std::optional<int32_t> dim, size_t dimensions);

}  // namespace latentd::channel
