#include "channel/transfer_plan.h"

#include <algorithm>
#include <string>

namespace latentd::channel {
namespace {

Status mismatch(size_t rank, const std::string& what) {
  return makeStatus(absl::StatusCode::kInvalidArgument,
                    "producer rank " + std::to_string(rank) + " published " + what + " than rank 0 for the same leaf");
}

// That the ranks' shapes differ along `dim` alone.
Status checkShapes(const std::vector<LeafSource>& sources, std::optional<size_t> dim) {
  const std::vector<int64_t>& first = sources[0].shape;
  for (size_t p = 0; p < sources.size(); ++p) {
    const std::vector<int64_t>& shape = sources[p].shape;
    if (shape.size() != first.size()) return mismatch(p, "another number of dimensions");
    for (size_t d = 0; d < shape.size(); ++d) {
      if (d != dim && shape[d] != first[d]) return mismatch(p, "another extent in dimension " + std::to_string(d));
    }
  }
  return absl::OkStatus();
}

// Where the parts of the producer ranks lie along the dimension they are cut in.
std::vector<Range> producerRanges(const std::vector<LeafSource>& sources, std::optional<size_t> dim) {
  std::vector<Range> ranges;
  int64_t begin = 0;
  for (const LeafSource& source : sources) {
    const int64_t extent = dim ? source.shape[*dim] : 0;
    ranges.push_back({begin, begin + extent});
    begin += extent;
  }
  return ranges;
}

CopyRegion makeRegion(uint32_t source_rank, const std::vector<int64_t>& source_shape, const std::vector<Range>& box,
                      const std::vector<int64_t>& source_begin, const std::vector<int64_t>& target_begin,
                      const std::vector<int64_t>& target_strides) {
  CopyRegion region;
  region.source_rank = source_rank;
  region.source_strides = contiguousStrides(source_shape);
  for (size_t d = 0; d < box.size(); ++d) {
    region.extents.push_back(box[d].size());
    region.target_begin.push_back(box[d].begin - target_begin[d]);
    region.source_offset += (box[d].begin - source_begin[d]) * region.source_strides[d];
  }
  region.aimAt(target_strides);
  return region;
}

StatusOr<LeafPlan> planBoxes(const std::vector<LeafSource>& sources, const ChannelSpec& spec, Rank rank) {
  const size_t dimensions = sources[0].shape.size();
  const bool whole = sources[0].whole;
  const std::optional<size_t> consumer_dim = whole ? std::nullopt : resolveDim(spec.consumer_shard_dim, dimensions);
  const std::optional<size_t> producer_dim =
      whole || sources.size() == 1 ? std::nullopt : resolveDim(spec.producer_shard_dim, dimensions);
  LATENTD_RETURN_IF_ERROR(checkShapes(sources, producer_dim));
  const std::vector<Range> ranges = producerRanges(sources, producer_dim);

  std::vector<int64_t> full = sources[0].shape;
  if (producer_dim) full[*producer_dim] = ranges.back().end;
  std::vector<Range> part;
  std::vector<int64_t> target_begin;
  LeafPlan plan;
  for (size_t d = 0; d < dimensions; ++d) {
    part.push_back(d == consumer_dim ? splitRange(full[d], spec.consumer_ranks, rank.value) : Range{0, full[d]});
    target_begin.push_back(part[d].begin);
    plan.shape.push_back(part[d].size());
  }
  const std::vector<int64_t> target_strides = contiguousStrides(plan.shape);
  // A leaf that is not cut is the same on every rank: rank 0's copy is read.
  const size_t read_ranks = producer_dim ? sources.size() : 1;
  for (size_t p = 0; p < read_ranks; ++p) {
    std::vector<Range> box = part;
    std::vector<int64_t> source_begin(dimensions, 0);
    if (producer_dim) {
      Range& cut = box[*producer_dim];
      cut = intersect(cut, ranges[p]);
      source_begin[*producer_dim] = ranges[p].begin;
    }
    const bool empty = std::any_of(box.begin(), box.end(), [](const Range& range) { return range.size() == 0; });
    if (empty) continue;
    plan.regions.push_back(
        makeRegion(static_cast<uint32_t>(p), sources[p].shape, box, source_begin, target_begin, target_strides));
  }
  return plan;
}

// ---- token grids ---------------------------------------------------------------------------------------------

// The ranks' parts are of one grid, cut as the channel says, and together all of it.
Status checkTokenParts(const std::vector<LeafSource>& sources, TokenCut cut) {
  const TokenPart& first = *sources[0].tokens;
  int64_t begin = 0;
  for (size_t p = 0; p < sources.size(); ++p) {
    const TokenPart& part = *sources[p].tokens;
    if (part.grid != first.grid || part.dim != first.dim) {
      return mismatch(p, "tokens of another grid (" + toString(part.grid) + " in dimension " +
                             std::to_string(part.dim) + ", not " + toString(first.grid) + " in " +
                             std::to_string(first.dim) + ")");
    }
    if (part.cut != cut) {
      return makeStatus(absl::StatusCode::kInvalidArgument,
                        "producer rank " + std::to_string(p) + " published a token grid cut along " +
                            std::string(toString(part.cut)) + ", the channel expects " + std::string(toString(cut)));
    }
    if (cut == TokenCut::kNone || part.held.size() == 0) continue;
    if (part.held.begin != begin) {
      return makeStatus(absl::StatusCode::kInvalidArgument,
                        "producer rank " + std::to_string(p) + " holds " + std::string(toString(cut)) + " from " +
                            std::to_string(part.held.begin) + " of a grid, and the ranks before it end at " +
                            std::to_string(begin));
    }
    begin = part.held.end;
  }
  const int64_t extent = cut == TokenCut::kRows ? first.grid.rows : first.grid.tokens();
  if (cut == TokenCut::kNone || begin == extent) return absl::OkStatus();
  return makeStatus(absl::StatusCode::kInvalidArgument,
                    "the producer ranks hold " + std::to_string(begin) + " of the " + std::to_string(extent) + " " +
                        std::string(toString(cut)) + " of a grid of " + toString(first.grid));
}

CopyRegion makeTokenRegion(uint32_t source_rank, const std::vector<int64_t>& source_shape, uint32_t dim,
                           const TokenRuns& runs, const std::vector<int64_t>& target_strides) {
  CopyRegion region;
  region.source_rank = source_rank;
  region.source_strides = contiguousStrides(source_shape);
  region.source_offset = runs.source_begin * region.source_strides[dim];
  region.extents = source_shape;
  region.extents[dim] = runs.tokens;
  region.target_begin.assign(source_shape.size(), 0);
  region.target_begin[dim] = runs.target_begin;
  if (runs.count > 1) {
    region.extents.insert(region.extents.begin(), runs.count);
    region.source_strides.insert(region.source_strides.begin(), runs.source_step * region.source_strides[dim]);
    region.stack = {dim, runs.target_step};
  }
  region.aimAt(target_strides);
  return region;
}

StatusOr<LeafPlan> planTokens(const std::vector<LeafSource>& sources, const ChannelSpec& spec, Rank rank) {
  const bool whole = sources[0].whole;
  const TokenCut cut = whole ? TokenCut::kNone : spec.producer_tokens;
  LATENTD_RETURN_IF_ERROR(checkTokenParts(sources, cut));
  const TokenPart& first = *sources[0].tokens;
  const uint32_t dim = first.dim;
  LATENTD_RETURN_IF_ERROR(checkShapes(sources, dim));

  LeafPlan plan;
  plan.tokens =
      shareOf(dim, first.grid, whole ? TokenCut::kNone : spec.consumer_tokens, spec.consumer_ranks, rank.value);
  plan.shape = sources[0].shape;
  plan.shape[dim] = plan.tokens->tokens();
  if (elementCount(plan.shape) == 0) return plan;
  const std::vector<int64_t> target_strides = contiguousStrides(plan.shape);
  const size_t read_ranks = cut == TokenCut::kNone ? 1 : sources.size();
  for (uint32_t p = 0; p < read_ranks; ++p) {
    for (const TokenRuns& runs : commonRuns(*sources[p].tokens, *plan.tokens))
      plan.regions.push_back(makeTokenRegion(p, sources[p].shape, dim, runs, target_strides));
  }
  return plan;
}

}  // namespace

void CopyRegion::aimAt(const std::vector<int64_t>& strides) {
  target_offset = 0;
  for (size_t d = 0; d < strides.size(); ++d)
    target_offset += target_begin[d] * strides[d];
  target_strides = strides;
  if (stack) target_strides.insert(target_strides.begin(), stack->target_step * strides[stack->dim]);
}

std::optional<size_t> resolveDim(std::optional<int32_t> dim, size_t dimensions) {
  if (!dim) return std::nullopt;
  const int64_t resolved = *dim < 0 ? *dim + static_cast<int64_t>(dimensions) : *dim;
  if (resolved < 0 || resolved >= static_cast<int64_t>(dimensions)) return std::nullopt;
  return static_cast<size_t>(resolved);
}

StatusOr<LeafPlan> planLeaf(const std::vector<LeafSource>& sources, const ChannelSpec& spec, Rank rank) {
  for (size_t p = 1; p < sources.size(); ++p) {
    if (sources[p].whole != sources[0].whole) return mismatch(p, "another choice of `whole`");
    if (sources[p].tokens.has_value() != sources[0].tokens.has_value()) {
      return mismatch(p, "another choice of token layout");
    }
  }
  return sources[0].tokens ? planTokens(sources, spec, rank) : planBoxes(sources, spec, rank);
}

int64_t plannedElements(const LeafPlan& plan) {
  int64_t count = 0;
  for (const CopyRegion& region : plan.regions)
    count += elementCount(region.extents);
  return count;
}

}  // namespace latentd::channel
