#include "mesh/scatter_memory.h"

#include <memory>
#include <utility>

#include <ATen/ops/from_blob.h>
#include <c10/core/InferenceMode.h>

#include "mesh/round_flags.h"
#include "mesh/scatter_flags.h"
#include "mesh/shared_regions.h"

namespace latentd::mesh {
namespace {

class SharedScatterMemory final : public ScatterMemory {
 public:
  SharedScatterMemory(ProcessGroup& group, RoundFlags flags) : group_(group), flags_(std::move(flags)) {}

  StatusOr<std::vector<at::Tensor>> share(uint64_t bytes) override {
    LATENTD_ASSIGN_OR_RETURN(std::vector<ShmRegion> regions,
                             shareRegions(group_, "latentd-ulysses-targets", bytes, [](const ShmRegion&) {}));
    // Written to in inference mode and out of it.
    const c10::InferenceMode plain(false);
    std::vector<at::Tensor> shared;
    for (ShmRegion& region : regions) {
      const auto kept = std::make_shared<ShmRegion>(std::move(region));
      shared.push_back(at::from_blob(
          kept->data(), {static_cast<int64_t>(bytes)}, [kept](void*) {}, at::TensorOptions(at::kByte)));
    }
    return shared;
  }

  // A region goes with the last process that maps it, and rounds that are over are so on all ranks [M12].
  void retire(std::vector<at::Tensor>) override {}

  void beginRound(uint32_t round) override { flags_.announce(RoundFlags::Mark::kFree, round); }
  at::Tensor copyable(const at::Tensor& x) const override { return x; }
  void beginCopies(uint32_t round) override { flags_.await(RoundFlags::Mark::kFree, round); }
  void copy(const at::Tensor& target, const at::Tensor& source) override { target.copy_(source); }

  void finishRound(uint32_t round) override {
    flags_.announce(RoundFlags::Mark::kWritten, round);
    flags_.await(RoundFlags::Mark::kWritten, round);
  }

  void end() noexcept override { flags_.end(); }
  void close(std::vector<std::vector<at::Tensor>>) noexcept override { flags_.leave(); }

 private:
  ProcessGroup& group_;
  RoundFlags flags_;
};

}  // namespace

StatusOr<std::unique_ptr<ScatterMemory>> makeSharedScatterMemory(ProcessGroup& group) {
  LATENTD_ASSIGN_OR_RETURN(RoundFlags flags, shareFlags(group));
  return std::make_unique<SharedScatterMemory>(group, std::move(flags));
}

StatusOr<std::unique_ptr<ScatterMemory>> ScatterMemory::make(ProcessGroup& group) {
  return group.device().is_cpu() ? makeSharedScatterMemory(group) : makeCudaScatterMemory(group);
}

}  // namespace latentd::mesh
