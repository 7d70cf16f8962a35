#include <algorithm>
#include <string>
#include <utility>

#include "channel/consumer_core.h"
#include "channel/tree_codec.h"
#include "runtime/base/check.h"
#include "runtime/base/fault_point.h"

// The part of ConsumerCore that works out what to read of an artifact that arrived, and reads it.
namespace latentd::channel {

bool ConsumerCore::Claim::canBeLent() const {
  const bool in_one_piece =
      std::all_of(plans.begin(), plans.end(), [](const LeafPlan& leaf) { return leaf.isOnePiece(); });
  const auto lends = [](const auto& pool) { return pool == nullptr || pool->lends(); };
  return in_one_piece && std::all_of(pools.begin(), pools.end(), [&](const auto& of_rank) {
           return std::all_of(of_rank.begin(), of_rank.end(), lends);
         });
}

StatusOr<ConsumerCore::Claim> ConsumerCore::plan(Artifact& artifact) {
  Claim claim;
  claim.records = artifact.records;
  const Record& first = *claim.records[0];
  for (size_t p = 0; p < claim.records.size(); ++p) {
    const Record& record = *claim.records[p];
    LATENTD_RETURN_IF_ERROR(record.import_status);
    if (p > 0 && (record.leaves.size() != first.leaves.size() ||
                  record.tree.SerializeAsString() != first.tree.SerializeAsString())) {
      return makeStatus(absl::StatusCode::kInternal, describe(p) + " published another tree than rank 0 as number " +
                                                         std::to_string(first.sequence.value));
    }
    claim.pools.emplace_back(record.leaves.size());
    claim.read.emplace_back(record.words().size(), false);
    // A ticket without a buffer stands for the artifact itself: it was read.
    if (record.ticket && record.ticket->bytes == 0) claim.read.back().back() = true;
  }
  for (size_t leaf = 0; leaf < first.leaves.size(); ++leaf)
    LATENTD_RETURN_IF_ERROR(planLeafOf(claim, leaf));
  return claim;
}

Status ConsumerCore::planLeafOf(Claim& claim, size_t leaf) {
  std::vector<LeafSource> sources;
  for (size_t p = 0; p < claim.records.size(); ++p) {
    const Record::Leaf& part = claim.records[p]->leaves[leaf];
    if (part.desc.dtype() != claim.records[0]->leaves[leaf].desc.dtype()) {
      return makeStatus(absl::StatusCode::kInternal, describe(p) + " published another dtype than rank 0");
    }
    sources.push_back({part.desc.shape(), part.whole, part.tokens});
  }
  StatusOr<LeafPlan> plan = planLeaf(sources, spec_, rank_);
  if (!plan.ok()) return makeStatus(absl::StatusCode::kInternal, messageOf(plan.status()) + " on " + spec_.edge);
  for (const CopyRegion& region : plan->regions) {
    LATENTD_ASSIGN_OR_RETURN(claim.pools[region.source_rank][leaf], poolOf(claim, region.source_rank, leaf));
  }
  claim.bytes += static_cast<uint64_t>(plannedElements(*plan)) * byteSize(claim.records[0]->leaves[leaf].desc.dtype());
  claim.plans.push_back(*std::move(plan));
  return absl::OkStatus();
}

StatusOr<std::shared_ptr<ImportedPool>> ConsumerCore::poolOf(Claim& claim, size_t rank, size_t leaf) {
  const Record& record = *claim.records[rank];
  const Record::Leaf& part = record.leaves[leaf];
  if (!part.slot) {
    if (!part.unpooled_offset || record.ticket->buffer == nullptr) {
      return makeStatus(absl::StatusCode::kInternal, describe(rank) + " did not publish a leaf that is its to publish");
    }
    claim.read[rank].back() = true;
    return record.ticket->buffer;
  }
  size_t word = 0;
  for (size_t i = 0; i < leaf; ++i)
    word += record.leaves[i].slot ? 1 : 0;
  claim.read[rank][word] = true;
  Mapped& mapped = sources_[rank].pools.at(part.slot->row.value);
  if (mapped.pool == nullptr) {
    // Its descriptor was lost for want of a free one, or there was no memory, twice: the next number asks again.
    return mapped.status;
  }
  return mapped.pool;
}

StatusOr<ArtifactTree> ConsumerCore::copyOut(Claim& claim, Allocator& allocator) {
  const std::vector<Record::Leaf>& leaves = claim.records[0]->leaves;
  std::vector<TensorView> targets;
  for (size_t i = 0; i < leaves.size(); ++i) {
    LATENTD_ASSIGN_OR_RETURN(TensorView target,
                             allocator.allocate(leaves[i].desc.dtype(), claim.plans[i].shape, device_));
    LATENTD_CHECK(target.shape == claim.plans[i].shape && target.strides.size() == target.shape.size(),
                  "the allocator returned a tensor of another shape");
    target.whole = leaves[i].whole;
    target.tokens = claim.plans[i].tokens;
    for (CopyRegion& region : claim.plans[i].regions) {
      // Planned for a dense target; the allocator may have chosen other strides.
      if (!isContiguous(target)) region.aimAt(target.strides);
      const Record::Leaf& part = claim.records[region.source_rank]->leaves[i];
      const SlotIndex slot = part.slot ? part.slot->slot : SlotIndex(0);
      LATENTD_FAULT_POINT(context_.faults, "channel.consumer.copying");
      LATENTD_RETURN_IF_ERROR(
          claim.pools[region.source_rank][i]->read(slot, part.unpooled_offset.value_or(0), {&region, 1}, target));
    }
    targets.push_back(std::move(target));
  }
  return decodeTree(claim.records[0]->tree, targets);
}

StatusOr<ArtifactTree> ConsumerCore::lend(const Claim& claim) {
  std::vector<TensorView> views;
  for (size_t i = 0; i < claim.plans.size(); ++i) {
    const LeafPlan& plan = claim.plans[i];
    TensorView view;
    view.dtype = claim.records[0]->leaves[i].desc.dtype();
    view.shape = plan.shape;
    view.strides = contiguousStrides(plan.shape);
    view.device = device_;  // a peer's memory is read from here
    view.whole = claim.records[0]->leaves[i].whole;
    view.tokens = plan.tokens;
    for (const CopyRegion& region : plan.regions) {
      const Record::Leaf& part = claim.records[region.source_rank]->leaves[i];
      const std::shared_ptr<ImportedPool>& pool = claim.pools[region.source_rank][i];
      LATENTD_ASSIGN_OR_RETURN(
          void* const data, pool->borrow(part.slot ? part.slot->slot : SlotIndex(0), part.unpooled_offset.value_or(0)));
      view.data = static_cast<std::byte*>(data) + region.source_offset * static_cast<int64_t>(byteSize(view.dtype));
      view.strides = region.source_strides;
      view.owner = pool;
    }
    views.push_back(std::move(view));
  }
  return decodeTree(claim.records[0]->tree, views);
}

}  // namespace latentd::channel
