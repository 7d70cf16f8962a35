#include "mesh/direct_scatter.h"

#include <algorithm>
#include <string>
#include <utility>

#include <c10/util/Exception.h>
#include <c10/util/accumulate.h>

#include "mesh/scalar_type.h"
#include "runtime/base/check.h"
#include "runtime/base/flight_recorder.h"
#include "runtime/base/log.h"

namespace latentd::mesh {
namespace {

constexpr size_t kSetsMax = DirectScatter::kTargetsMax / kHeadTags.size();
// As a region's.
constexpr uint64_t kAlignment = 256;

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

uint64_t regionBytes(const HeadShare& share) { return targetBytes(share) * kHeadTags.size(); }

// "bfloat16 [1, 16380, 12, 128]", as the flight recorder shows it.
std::string shareText(const HeadShare& share) {
  Operation operation;
  operation.dtype = toDType(share.dtype);
  operation.shape = share.shape;
  return tensorText(operation);
}

// Ranks agree on the reason, which names one of them: one tells it.
void tellRefused(const ProcessGroup& group, const HeadShare& share, const Status& reason) {
  if (group.rank() != 0) return;
  getLogger("mesh")->warn("heads of {} a rank are scattered by c10d and not by {}, which takes {} bytes of each: {}",
                          shareText(share), group.device().is_cpu() ? "shm" : "cuda_ipc", regionBytes(share),
                          messageOf(reason));
}

}  // namespace

// A scatter whose copies are made. Owner: a Pending, which the process group outlives.
class DirectScatter::Written final : public Communicator::Work {
 public:
  Written(DirectScatter& scatter, at::Tensor source, uint32_t round)
      : scatter_(scatter), source_(std::move(source)), round_(round) {}
  void wait() override { scatter_.finishRound(round_); }

 private:
  DirectScatter& scatter_;
  at::Tensor source_;  // until the model's stream is after the copies of it
  uint32_t round_;
};

StatusOr<std::unique_ptr<DirectScatter>> DirectScatter::make(ProcessGroup& group) {
  LATENTD_ASSIGN_OR_RETURN(std::unique_ptr<ScatterMemory> memory, ScatterMemory::make(group));
  return std::unique_ptr<DirectScatter>(new DirectScatter(group, std::move(memory)));
}

DirectScatter::~DirectScatter() {
  std::vector<std::vector<at::Tensor>> regions;
  for (TargetSet& set : sets_)
    regions.push_back(std::move(set.regions));
  sets_.clear();
  memory_->close(std::move(regions));
}

Status DirectScatter::allocate(TargetSet& set) {
  const uint64_t bytes = targetBytes(set.share);
  LATENTD_ASSIGN_OR_RETURN(set.regions, memory_->share(regionBytes(set.share)));
  const std::vector<int64_t> shape = targetShape(set.share, group_.size());
  const int64_t used = c10::multiply_integers(shape) * static_cast<int64_t>(c10::elementSize(set.share.dtype));
  for (const at::Tensor& region : set.regions) {
    Targets& targets = set.of_rank.emplace_back();
    for (size_t tag = 0; tag < targets.size(); ++tag)
      targets[tag] = region.narrow(0, static_cast<int64_t>(tag * bytes), used).view(set.share.dtype).view(shape);
  }
  return absl::OkStatus();
}

void DirectScatter::retireOldest() {
  std::vector<at::Tensor> regions = std::move(sets_.back().regions);
  sets_.pop_back();
  if (!regions.empty()) memory_->retire(std::move(regions));
}

DirectScatter::TargetSet& DirectScatter::targetsOf(const HeadShare& share) {
  const auto found = std::find_if(sets_.begin(), sets_.end(), [&](const TargetSet& set) { return set.share == share; });
  if (found != sets_.end()) {
    sets_.splice(sets_.begin(), sets_, found);
    return sets_.front();
  }
  // Rounds that are over are so on all ranks: nobody writes into what goes here [M12].
  if (sets_.size() == kSetsMax) retireOldest();
  TargetSet& set = sets_.emplace_front();
  set.share = share;
  set.refused = allocate(set);
  // What is kept for other shares may be what is lacking.
  while (absl::IsResourceExhausted(set.refused) && sets_.size() > 1) {
    retireOldest();
    set.refused = allocate(set);
  }
  if (!set.refused.ok()) tellRefused(group_, share, set.refused);
  return set;
}

Status DirectScatter::begin(const HeadShare& share) {
  LATENTD_RETURN_IF_ERROR(targetsOf(share).refused);
  ++round_;
  memory_->beginRound(round_);
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
    const at::Tensor from = memory_->copyable(x);
    memory_->beginCopies(round_);
    const int64_t rows = x.size(1);
    const int64_t heads = x.size(2) / ranks;
    for (int i = 1; i <= ranks; ++i) {  // ranks begin at different peers
      const int peer = (rank + i) % ranks;
      const at::Tensor& target = set.of_rank[peer][static_cast<size_t>(tag)];
      memory_->copy(target.narrow(1, rank * rows, rows), from.narrow(2, peer * heads, heads));
    }
    return std::make_unique<Written>(*this, from, round_);
  });
}

void DirectScatter::finishRound(uint32_t round) {
  if (finished_ == round) return;
  memory_->finishRound(round);
  finished_ = round;
}

const at::Tensor& DirectScatter::target(HeadTag tag) const {
  return sets_.front().of_rank[static_cast<size_t>(group_.rank())][static_cast<size_t>(tag)];
}

}  // namespace latentd::mesh
