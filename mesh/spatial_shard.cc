#include "mesh/spatial_shard.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "mesh/collectives.h"
#include "runtime/base/check.h"

namespace latentd::mesh {
namespace {

// Transfers are in the order of dimensions, whatever order a tensor has in memory: that of dimensions of size 1, which
// a shard may have and another may not, cannot be told.
at::Tensor withSize(const at::Tensor& like, int64_t dim, int64_t size) {
  std::vector<int64_t> shape = like.sizes().vec();
  shape[dim] = size;
  return at::empty(shape, like.options(), at::MemoryFormat::Contiguous);
}

}  // namespace

std::vector<int64_t> SpatialShard::cut(int64_t height, int ranks) {
  std::vector<int64_t> heights(ranks, height / ranks);
  for (int64_t r = 0; r < height % ranks; ++r)
    ++heights[r];
  return heights;
}

Status SpatialShard::checkHeight(int64_t height, int64_t unit, int ranks) {
  if (height % unit == 0 && height / unit >= ranks) return absl::OkStatus();
  return absl::InvalidArgumentError(fmt::format(
      "height {}: {} ranks share it in multiples of {}; ask for a multiple of {} from {} on, or lower parallel.spatial",
      height, ranks, unit, unit, ranks * unit));
}

StatusOr<SpatialShard> SpatialShard::agree(HaloExchange& halo, at::Device device, int64_t given, int64_t whole,
                                           int64_t unit) {
  const int ranks = halo.group().size();
  LATENTD_CHECK(checkHeight(whole, unit, ranks).ok(), "a height is checked before ranks meet over it");
  std::vector<int64_t> heights = allGatherInt(halo.group(), given, device);
  if (std::all_of(heights.begin(), heights.end(), [&](int64_t height) { return height == whole; })) {
    return SpatialShard(halo, cut(whole / unit, ranks));
  }
  const bool in_rows =
      std::all_of(heights.begin(), heights.end(), [&](int64_t height) { return height >= unit && height % unit == 0; });
  if (!in_rows || std::accumulate(heights.begin(), heights.end(), int64_t{0}) != whole) {
    return absl::InvalidArgumentError(fmt::format(
        "the ranks were given heights {}; expected {} on each, or shards that add up to it, each a positive multiple "
        "of {}",
        fmt::join(heights, " + "), whole, unit));
  }
  for (int64_t& height : heights)
    height /= unit;
  return SpatialShard(halo, std::move(heights));
}

SpatialShard::SpatialShard(HaloExchange& halo, std::vector<int64_t> heights)
    : halo_(&halo), heights_(std::move(heights)) {
  LATENTD_CHECK(heights_.size() == static_cast<size_t>(halo.group().size()), "a shard has one height for each rank");
  LATENTD_CHECK(std::all_of(heights_.begin(), heights_.end(), [](int64_t height) { return height > 0; }),
                "every rank has rows");
}

int64_t SpatialShard::height() const { return std::accumulate(heights_.begin(), heights_.end(), int64_t{0}); }

int64_t SpatialShard::entriesPerRow(const at::Tensor& local, int64_t dim) const {
  LATENTD_CHECK(local.size(dim) % localHeight() == 0, "a sharded tensor has the same number of entries for every row");
  return local.size(dim) / localHeight();
}

at::Tensor SpatialShard::slice(const at::Tensor& tensor, int64_t dim, int64_t unit) const {
  if (tensor.size(dim) == localHeight() * unit && localHeight() != height()) return tensor;
  LATENTD_CHECK(tensor.size(dim) == height() * unit, "what is sliced is whole, or this rank's part");
  const int64_t start = std::accumulate(heights_.begin(), heights_.begin() + rank(), int64_t{0});
  return tensor.narrow(dim, start * unit, localHeight() * unit);
}

at::Tensor SpatialShard::gather(const at::Tensor& local, int64_t dim) const {
  const int64_t unit = entriesPerRow(local, dim);
  const int64_t tallest = *std::max_element(heights_.begin(), heights_.end());
  at::Tensor padded = local.contiguous();
  if (localHeight() < tallest) {
    padded = withSize(local, dim, tallest * unit);
    padded.narrow(dim, 0, local.size(dim)).copy_(local);
    padded.narrow(dim, local.size(dim), tallest * unit - local.size(dim)).zero_();
  }
  const at::Tensor stacked = allGatherStacked(halo_->group(), padded);
  std::vector<at::Tensor> parts;
  for (size_t r = 0; r < heights_.size(); ++r)
    parts.push_back(stacked.select(0, static_cast<int64_t>(r)).narrow(dim, 0, heights_[r] * unit));
  return at::cat(parts, dim).contiguous(local.suggest_memory_format());
}

at::Tensor SpatialShard::gatherTo(int root, const at::Tensor& local, int64_t dim) const {
  const int64_t unit = entriesPerRow(local, dim);
  const at::Tensor dense = local.contiguous();
  if (rank() != root) {
    halo_->group().exchange({{root, dense}}, {}).wait();
    return {};
  }
  std::vector<at::Tensor> parts;
  std::vector<PeerTensor> receives;
  for (int r = 0; r < static_cast<int>(heights_.size()); ++r) {
    parts.push_back(r == root ? dense : withSize(local, dim, heights_[r] * unit));
    if (r != root) receives.push_back({r, parts.back()});
  }
  halo_->group().exchange({}, std::move(receives)).wait();
  return at::cat(parts, dim).contiguous(local.suggest_memory_format());
}

}  // namespace latentd::mesh
