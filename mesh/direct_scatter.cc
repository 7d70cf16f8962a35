#include "mesh/direct_scatter.h"

#include <algorithm>
#include <string>
#include <utility>

#include <ATen/ops/from_blob.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>
#include <c10/util/accumulate.h>

#include "mesh/shared_regions.h"
#include "runtime/base/check.h"
#include "runtime/base/log.h"

namespace latentd::mesh {
namespace {

constexpr size_t kSetsMax = DirectScatter::kTargetsMax / kHeadTags.size();
// What vector instructions like.
constexpr uint64_t kAlignment = 64;

// As the flight recorder shows it.
const char* kindOf(HeadTag tag) {
  switch (tag) {
    case HeadTag::kQuery:
      return "scatter_q";
    case HeadTag::kKey:
      return "scatter_k";
    case HeadTag::kValue:
      return "scatter_v";
  }
  return "?";
}

std::vector<int64_t> targetShape(const HeadShare& share, int64_t ranks) {
  return {share.shape[0], share.shape[1] * ranks, share.shape[2] / ranks, share.shape[3]};
}

uint64_t targetBytes(const HeadShare& share) {
  const auto bytes = static_cast<uint64_t>(c10::multiply_integers(share.shape)) * c10::elementSize(share.dtype);
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

// A scatter whose copies are made. Owner: a Pending, which the process group outlives.
class DirectScatter::Written final : public Communicator::Work {
 public:
  Written(DirectScatter& scatter, uint32_t round) : scatter_(scatter), round_(round) {}
  void wait() override { scatter_.finishRound(round_); }

 private:
  DirectScatter& scatter_;
  uint32_t round_;
};

StatusOr<std::unique_ptr<DirectScatter>> DirectScatter::make(ProcessGroup& group) {
  const uint64_t bytes = RoundFlags::pageBytes(group.members().size());
  LATENTD_ASSIGN_OR_RETURN(std::vector<ShmRegion> pages,
                           shareRegions(group, "latentd-ulysses-flags", bytes, RoundFlags::initialize));
  StatusOr<RoundFlags> flags = RoundFlags::make(static_cast<size_t>(group.rank()), group.members(), std::move(pages));
  LATENTD_RETURN_IF_ERROR(agree(group, flags.status()));
  return std::unique_ptr<DirectScatter>(new DirectScatter(group, *std::move(flags)));
}

DirectScatter::~DirectScatter() { flags_.leave(); }

Status DirectScatter::allocate(TargetSet& set) {
  const uint64_t bytes = targetBytes(set.share);
  LATENTD_ASSIGN_OR_RETURN(
      std::vector<ShmRegion> regions,
      shareRegions(group_, "latentd-ulysses-targets", bytes * kHeadTags.size(), [](const ShmRegion&) {}));
  const std::vector<int64_t> shape = targetShape(set.share, group_.size());
  // Written to in inference mode and out of it.
  const c10::InferenceMode plain(false);
  for (ShmRegion& region : regions) {
    const auto shared = std::make_shared<ShmRegion>(std::move(region));
    Targets& targets = set.of_rank.emplace_back();
    for (size_t tag = 0; tag < targets.size(); ++tag) {
      targets[tag] = at::from_blob(
          shared->data() + tag * bytes, shape, [shared](void*) {}, at::TensorOptions(set.share.dtype));
    }
  }
  return absl::OkStatus();
}

DirectScatter::TargetSet& DirectScatter::targetsOf(const HeadShare& share) {
  const auto found = std::find_if(sets_.begin(), sets_.end(), [&](const TargetSet& set) { return set.share == share; });
  if (found != sets_.end()) {
    sets_.splice(sets_.begin(), sets_, found);
    return sets_.front();
  }
  // Rounds that are over are so on all ranks: nobody writes into what goes here [M12].
  if (sets_.size() == kSetsMax) sets_.pop_back();
  TargetSet& set = sets_.emplace_front();
  set.share = share;
  set.refused = allocate(set);
  if (!set.refused.ok()) getLogger("mesh")->warn("heads of one share are scattered by c10d: " + messageOf(set.refused));
  return set;
}

Status DirectScatter::begin(const HeadShare& share) {
  LATENTD_RETURN_IF_ERROR(targetsOf(share).refused);
  ++round_;
  flags_.announce(RoundFlags::Mark::kFree, round_);
  return absl::OkStatus();
}

Pending DirectScatter::submit(HeadTag tag, const at::Tensor& x) {
  const TargetSet& set = sets_.front();
  LATENTD_CHECK(round_ > finished_ && set.refused.ok(), "a scatter belongs to a round [M11]");
  TORCH_CHECK_VALUE(x.sizes() == set.share.shape && x.scalar_type() == set.share.dtype, "a scatter of ",
                    x.scalar_type(), " ", x.sizes(), " in a round of ", set.share.dtype, " ",
                    at::IntArrayRef(set.share.shape));
  const int ranks = group_.size();
  const int rank = group_.rank();
  const uint64_t bytes = x.nbytes() / ranks * (ranks - 1);
  return group_.carry(kindOf(tag), x, bytes, [&] {
    flags_.await(RoundFlags::Mark::kFree, round_);
    const int64_t rows = x.size(1);
    const int64_t heads = x.size(2) / ranks;
    for (int i = 1; i <= ranks; ++i) {  // ranks begin at different peers
      const int peer = (rank + i) % ranks;
      const at::Tensor& target = set.of_rank[peer][static_cast<size_t>(tag)];
      target.narrow(1, rank * rows, rows).copy_(x.narrow(2, peer * heads, heads));
    }
    return std::make_unique<Written>(*this, round_);
  });
}

void DirectScatter::finishRound(uint32_t round) {
  if (finished_ == round) return;
  flags_.announce(RoundFlags::Mark::kWritten, round);
  flags_.await(RoundFlags::Mark::kWritten, round);
  finished_ = round;
}

const at::Tensor& DirectScatter::target(HeadTag tag) const {
  return sets_.front().of_rank[static_cast<size_t>(group_.rank())][static_cast<size_t>(tag)];
}

}  // namespace latentd::mesh
