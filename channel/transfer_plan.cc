#include "channel/transfer_plan.h"

#include <algorithm>
#include <string>

namespace latentd::channel {
namespace {

Status mismatch(size_t rank, const std::string& what) {
  return makeStatus(absl::StatusCode::kInvalidArgument,
                    "producer rank " + std::to_string(rank) + " published " + what + " than rank 0 for the same leaf");
}

// Where the parts of the producer ranks lie along the dimension they are cut in.
StatusOr<std::vector<Range>> producerRanges(const std::vector<LeafSource>& sources, std::optional<size_t> dim) {
  const std::vector<int64_t>& first = sources[0].shape;
  std::vector<Range> ranges;
  int64_t begin = 0;
  for (size_t p = 0; p < sources.size(); ++p) {
    const std::vector<int64_t>& shape = sources[p].shape;
    if (shape.size() != first.size()) return mismatch(p, "another number of dimensions");
    for (size_t d = 0; d < shape.size(); ++d) {
      if (d != dim && shape[d] != first[d]) return mismatch(p, "another extent in dimension " + std::to_string(d));
    }
    const int64_t extent = dim ? shape[*dim] : 0;
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
  region.target_strides = target_strides;
  for (size_t d = 0; d < box.size(); ++d) {
    region.extents.push_back(box[d].size());
    region.target_begin.push_back(box[d].begin - target_begin[d]);
    region.source_offset += (box[d].begin - source_begin[d]) * region.source_strides[d];
    region.target_offset += region.target_begin[d] * target_strides[d];
  }
  return region;
}

}  // namespace

Range splitRange(int64_t extent, uint32_t parts, uint32_t index) {
  const int64_t each = extent / parts;
  const int64_t longer = extent % parts;
  const int64_t begin = index * each + std::min<int64_t>(index, longer);
  return {begin, begin + each + (index < longer ? 1 : 0)};
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
  }
  const size_t dimensions = sources[0].shape.size();
  const bool whole = sources[0].whole;
  const std::optional<size_t> consumer_dim = whole ? std::nullopt : resolveDim(spec.consumer_shard_dim, dimensions);
  const std::optional<size_t> producer_dim =
      whole || sources.size() == 1 ? std::nullopt : resolveDim(spec.producer_shard_dim, dimensions);
  LATENTD_ASSIGN_OR_RETURN(const std::vector<Range> ranges, producerRanges(sources, producer_dim));

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
      cut = {std::max(cut.begin, ranges[p].begin), std::min(cut.end, ranges[p].end)};
      source_begin[*producer_dim] = ranges[p].begin;
    }
    const bool empty = std::any_of(box.begin(), box.end(), [](const Range& range) { return range.size() <= 0; });
    if (empty) continue;
    plan.regions.push_back(
        makeRegion(static_cast<uint32_t>(p), sources[p].shape, box, source_begin, target_begin, target_strides));
  }
  return plan;
}

int64_t plannedElements(const LeafPlan& plan) {
  int64_t count = 0;
  for (const CopyRegion& region : plan.regions)
    count += elementCount(region.extents);
  return count;
}

}  // namespace latentd::channel
