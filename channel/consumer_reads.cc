#include <algorithm>
#include <string>
#include <utility>

#include "channel/consumer_core.h"
#include "channel/tree_codec.h"
#include "runtime/base/check.h"
#include "runtime/base/fault_point.h"

// The part of ConsumerCore that works out what to read of an artifact that arrived, and reads it.
namespace latentd::channel {

bool ConsumerCore::Plan::canBeLent() const {
  const bool in_one_piece =
      std::all_of(leaves.begin(), leaves.end(), [](const LeafPlan& leaf) { return leaf.isOnePiece(); });
  const auto lends = [](const auto& pool) { return pool == nullptr || pool->lends(); };
  return in_one_piece && std::all_of(pools.begin(), pools.end(), [&](const auto& of_rank) {
           return std::all_of(of_rank.begin(), of_rank.end(), lends);
         });
}

StatusOr<ConsumerCore::Claim> ConsumerCore::claim(const Artifact& artifact) {
  Claim claim{artifact.records, plan_};
  bool reusable = true;
  for (size_t p = 0; p < claim.records.size(); ++p) {
    const Record& record = *claim.records[p];
    LATENTD_RETURN_IF_ERROR(record.import_status);
    reusable = reusable && !record.ticket;
    if (claim.plan != nullptr && claim.plan->shapes[p] != record.shape) claim.plan = nullptr;
  }
  if (claim.plan != nullptr && reusable) return claim;
  LATENTD_ASSIGN_OR_RETURN(claim.plan, planOf(claim));
  if (reusable) plan_ = claim.plan;
  return claim;
}

StatusOr<std::shared_ptr<const ConsumerCore::Plan>> ConsumerCore::planOf(const Claim& claim) {
  auto plan = std::make_shared<Plan>();
  const RecordShape& first = *claim.records[0]->shape;
  for (size_t p = 0; p < claim.records.size(); ++p) {
    const Record& record = *claim.records[p];
    const RecordShape& shape = *record.shape;
    if (p > 0 && (shape.leaves.size() != first.leaves.size() ||
                  shape.tree.SerializeAsString() != first.tree.SerializeAsString())) {
      return makeStatus(absl::StatusCode::kInternal, describe(p) + " published another tree than rank 0 as number " +
                                                         std::to_string(record.sequence.value));
    }
    plan->shapes.push_back(record.shape);
    plan->pools.emplace_back(shape.leaves.size());
    plan->read.emplace_back(record.words().size(), false);
    // A ticket without a buffer stands for the artifact itself: it was read.
    if (record.ticket && record.ticket->bytes == 0) plan->read.back().back() = true;
  }
  for (size_t leaf = 0; leaf < first.leaves.size(); ++leaf)
    LATENTD_RETURN_IF_ERROR(planLeafOf(claim, leaf, *plan));
  return std::shared_ptr<const Plan>(std::move(plan));
}

Status ConsumerCore::planLeafOf(const Claim& claim, size_t leaf, Plan& plan) {
  const DType dtype = plan.shapes[0]->leaves[leaf].desc.dtype();
  std::vector<LeafSource> sources;
  for (size_t p = 0; p < plan.shapes.size(); ++p) {
    const RecordShape::Leaf& part = plan.shapes[p]->leaves[leaf];
    if (part.desc.dtype() != dtype) {
      return makeStatus(absl::StatusCode::kInternal, describe(p) + " published another dtype than rank 0");
    }
    sources.push_back({part.desc.shape(), part.whole, part.tokens});
  }
  StatusOr<LeafPlan> planned = planLeaf(sources, spec_, rank_);
  if (!planned.ok()) return makeStatus(absl::StatusCode::kInternal, messageOf(planned.status()) + " on " + spec_.edge);
  for (const CopyRegion& region : planned->regions) {
    LATENTD_ASSIGN_OR_RETURN(plan.pools[region.source_rank][leaf],
                             poolOf(*claim.records[region.source_rank], region.source_rank, leaf, plan));
  }
  plan.bytes += static_cast<uint64_t>(plannedElements(*planned)) * byteSize(dtype);
  plan.leaves.push_back(*std::move(planned));
  return absl::OkStatus();
}

StatusOr<std::shared_ptr<ImportedPool>> ConsumerCore::poolOf(const Record& record, size_t rank, size_t leaf,
                                                             Plan& plan) {
  const RecordShape::Leaf& part = record.shape->leaves[leaf];
  if (!part.row) {
    if (!part.unpooled_offset || record.ticket->buffer == nullptr) {
      return makeStatus(absl::StatusCode::kInternal, describe(rank) + " did not publish a leaf that is its to publish");
    }
    plan.read[rank].back() = true;
    return record.ticket->buffer;
  }
  plan.read[rank][part.slot_at] = true;
  Mapped& mapped = sources_[rank].pools.at(part.row->value);
  if (mapped.pool == nullptr) {
    // Its descriptor was lost for want of a free one, or there was no memory, twice: the next number asks again.
    return mapped.status;
  }
  return mapped.pool;
}

StatusOr<ConsumerCore::Targets> ConsumerCore::makeTargets(std::shared_ptr<const Plan> plan,
                                                          Allocator& allocator) const {
  Targets targets;
  for (size_t i = 0; i < plan->leaves.size(); ++i) {
    const RecordShape::Leaf& leaf = plan->shapes[0]->leaves[i];
    const std::vector<int64_t>& shape = plan->leaves[i].shape;
    LATENTD_ASSIGN_OR_RETURN(TensorView target, allocator.allocate(leaf.desc.dtype(), shape, device_));
    LATENTD_CHECK(target.shape == shape && target.strides.size() == shape.size(),
                  "the allocator returned a tensor of another shape");
    target.whole = leaf.whole;
    target.tokens = plan->leaves[i].tokens;
    targets.views.push_back(std::move(target));
  }
  LATENTD_ASSIGN_OR_RETURN(targets.tree, decodeTree(plan->shapes[0]->tree, targets.views));
  targets.plan = std::move(plan);
  return targets;
}

StatusOr<ArtifactTree> ConsumerCore::copyOut(const Claim& claim, Allocator& allocator, Targets targets) {
  if (targets.plan != claim.plan) {
    targets = {};  // before others take memory
    LATENTD_ASSIGN_OR_RETURN(targets, makeTargets(claim.plan, allocator));
  }
  LATENTD_RETURN_IF_ERROR(readInto(targets, claim, "channel.consumer.copying"));
  return std::move(targets.tree);
}

Status ConsumerCore::readInto(const Targets& targets, const Claim& claim, std::string_view fault_point) const {
  const Plan& plan = *claim.plan;
  for (size_t i = 0; i < plan.leaves.size(); ++i) {
    const TensorView& target = targets.views[i];
    for (const CopyRegion& region : plan.leaves[i].regions) {
      const Record& record = *claim.records[region.source_rank];
      const RecordShape::Leaf& part = record.shape->leaves[i];
      LATENTD_FAULT_POINT(context_.faults, fault_point);
      CopyRegion aimed = region;
      // Planned for a dense target; the allocator may have chosen other strides.
      if (!isContiguous(target)) aimed.aimAt(target.strides);
      LATENTD_RETURN_IF_ERROR(plan.pools[region.source_rank][i]->read(
          record.slotOf(part), part.unpooled_offset.value_or(0), {&aimed, 1}, target));
    }
  }
  return absl::OkStatus();
}

StatusOr<ArtifactTree> ConsumerCore::lend(const Claim& claim) {
  const Plan& plan = *claim.plan;
  std::vector<TensorView> views;
  for (size_t i = 0; i < plan.leaves.size(); ++i) {
    const RecordShape::Leaf& leaf = plan.shapes[0]->leaves[i];
    TensorView view;
    view.dtype = leaf.desc.dtype();
    view.shape = plan.leaves[i].shape;
    view.strides = contiguousStrides(view.shape);
    view.device = device_;  // a peer's memory is read from here
    view.whole = leaf.whole;
    view.tokens = plan.leaves[i].tokens;
    for (const CopyRegion& region : plan.leaves[i].regions) {
      const Record& record = *claim.records[region.source_rank];
      const RecordShape::Leaf& part = record.shape->leaves[i];
      const std::shared_ptr<ImportedPool>& pool = plan.pools[region.source_rank][i];
      LATENTD_ASSIGN_OR_RETURN(void* const data, pool->borrow(record.slotOf(part), part.unpooled_offset.value_or(0)));
      view.data = static_cast<std::byte*>(data) + region.source_offset * static_cast<int64_t>(byteSize(view.dtype));
      view.strides = region.source_strides;
      view.owner = pool;
    }
    views.push_back(std::move(view));
  }
  return decodeTree(plan.shapes[0]->tree, views);
}

}  // namespace latentd::channel
