#include "channel/pinned_pool.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "channel/cuda_copy.h"
#include "channel/host_pool.h"
#include "runtime/base/check.h"
#include "runtime/base/shm_region.h"
#include "runtime/cuda/memory.h"
#include "runtime/cuda/stream_drain.h"

namespace latentd::channel {
namespace {

class PinnedExportedPool final : public ExportedPool {
 public:
  PinnedExportedPool(const PoolLayout& layout, const CudaOptions& options, std::shared_ptr<const ShmRegion> region,
                     cuda::PinnedRange pinned)
      : layout_(layout), options_(options), region_(std::move(region)), pinned_(std::move(pinned)) {}

  Handle handle() const override { return {{}, {region_->fd()}, region_}; }
  Status attach(Rank, const std::string& attachment) override { return checkHostAttachment(attachment); }

  Status fill(SlotIndex slot, uint64_t offset, const TensorView& source, uint64_t) override {
    const uint64_t begin = slot.value * layout_.slot_stride + offset;
    LATENTD_CHECK(begin + byteCount(source) <= layout_.bytes, "a fill beyond the pool [C8]");
    LATENTD_RETURN_IF_ERROR(fillAsync(region_->data() + begin, source, options_.stream));
    return cuda::drain(options_.stream, options_.device_timeout);
  }

  StatusOr<bool> tryDropAttachment(Rank) override { return true; }

 private:
  const PoolLayout layout_;
  const CudaOptions options_;
  const std::shared_ptr<const ShmRegion> region_;  // owners: this, and handles on their way out
  cuda::PinnedRange pinned_;
};

class PinnedImportedPool final : public ImportedPool {
 public:
  PinnedImportedPool(const PoolLayout& layout, const CudaOptions& options, ShmRegion region,
                     std::optional<cuda::PinnedRange> pinned)
      : layout_(layout), options_(options), region_(std::move(region)), pinned_(std::move(pinned)) {}

  std::string attachment() const override { return std::string(kHostAttachment); }

  Status read(SlotIndex slot, uint64_t offset, std::span<const CopyRegion> regions, const TensorView& target) override {
    const uint64_t begin = slot.value * layout_.slot_stride + offset;
    LATENTD_CHECK(region_ && begin < layout_.bytes, "a read beyond the pool, or after it was unmapped [C8]");
    return readAsync(target, region_->data() + begin, regions, options_.stream);
  }

  bool lends() const override { return false; }
  StatusOr<void*> borrow(SlotIndex, uint64_t) override {
    return makeStatus(absl::StatusCode::kFailedPrecondition, "slots in host memory are not lent to a device");
  }

  Status complete(SlotIndex) override { return cuda::drain(options_.stream, options_.device_timeout); }

  StatusOr<bool> tryUnmap() override {
    pinned_.reset();
    region_.reset();
    return true;
  }

 private:
  const PoolLayout layout_;
  const CudaOptions options_;
  std::optional<ShmRegion> region_;
  std::optional<cuda::PinnedRange> pinned_;  // after region_: unpinned first
};

}  // namespace

StatusOr<std::unique_ptr<ExportedPool>> makePinnedPool(const std::string& name, const PoolLayout& layout,
                                                       const CudaOptions& options) {
  LATENTD_ASSIGN_OR_RETURN(ShmRegion created, ShmRegion::create(name, layout.bytes, ShmRegion::Access::kRead));
  const auto region = std::make_shared<const ShmRegion>(std::move(created));
  LATENTD_ASSIGN_OR_RETURN(cuda::PinnedRange pinned, cuda::PinnedRange::pin(region->data(), region->bytes(),
                                                                            cuda::PinnedRange::Access::kReadWrite));
  return std::unique_ptr<ExportedPool>(
      std::make_unique<PinnedExportedPool>(layout, options, region, std::move(pinned)));
}

StatusOr<std::shared_ptr<ImportedPool>> importPinnedPool(UniqueFd fd, const PoolLayout& layout,
                                                         const CudaOptions& options) {
  LATENTD_ASSIGN_OR_RETURN(ShmRegion region, ShmRegion::map(std::move(fd), layout.bytes, ShmRegion::Access::kRead));
  StatusOr<cuda::PinnedRange> pinned =
      cuda::PinnedRange::pin(region.data(), region.bytes(), cuda::PinnedRange::Access::kRead);
  // Not every platform pins read-only mappings: copies from this one are staged by the driver then.
  std::optional<cuda::PinnedRange> kept;
  if (pinned.ok()) kept = *std::move(pinned);
  return std::shared_ptr<ImportedPool>(
      std::make_shared<PinnedImportedPool>(layout, options, std::move(region), std::move(kept)));
}

}  // namespace latentd::channel
