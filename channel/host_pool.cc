#include "channel/host_pool.h"

#include <string>
#include <utility>

#include "channel/limits.h"
#include "channel/strided_copy.h"
#include "runtime/base/check.h"

namespace latentd::channel {
namespace {

Status checkOnHost(const TensorView& view) {
  if (view.device.type == DeviceType::kCpu) return absl::OkStatus();
  return makeStatus(absl::StatusCode::kInvalidArgument, "this end of the edge moves tensors in host memory, not on " +
                                                            toString(view.device) +
                                                            ": give it a backend for its device");
}

class HostExportedPool final : public ExportedPool {
 public:
  HostExportedPool(std::span<std::byte> memory, const PoolLayout& layout, Handle handle)
      : memory_(memory), layout_(layout), handle_(std::move(handle)) {}

  Handle handle() const override { return handle_; }
  Status attach(Rank, const std::string& attachment) override { return checkHostAttachment(attachment); }

  Status fill(SlotIndex slot, uint64_t offset, const TensorView& source, uint64_t) override {
    LATENTD_RETURN_IF_ERROR(checkOnHost(source));
    const uint64_t begin = slot.value * layout_.slot_stride + offset;
    LATENTD_CHECK(begin + byteCount(source) <= memory_.size(), "a fill beyond the pool [C8]");
    copyStrided(memory_.data() + begin, contiguousStrides(source.shape), static_cast<const std::byte*>(source.data),
                source.strides, source.shape, byteSize(source.dtype));
    return absl::OkStatus();
  }

  StatusOr<bool> tryDropAttachment(Rank) override { return true; }

 private:
  const std::span<std::byte> memory_;
  const PoolLayout layout_;
  const Handle handle_;  // its `keep` holds the memory
};

class HostImportedPool final : public ImportedPool {
 public:
  HostImportedPool(std::span<const std::byte> memory, const PoolLayout& layout, std::shared_ptr<const void> keep)
      : memory_(memory), layout_(layout), keep_(std::move(keep)) {}

  std::string attachment() const override { return std::string(kHostAttachment); }

  Status read(SlotIndex slot, uint64_t offset, std::span<const CopyRegion> regions, const TensorView& target) override {
    LATENTD_RETURN_IF_ERROR(checkOnHost(target));
    const std::byte* source = at(slot, offset);
    const size_t element = byteSize(target.dtype);
    for (const CopyRegion& region : regions) {
      copyStrided(static_cast<std::byte*>(target.data) + region.target_offset * static_cast<int64_t>(element),
                  region.target_strides, source + region.source_offset * static_cast<int64_t>(element),
                  region.source_strides, region.extents, element);
    }
    return absl::OkStatus();
  }

  bool lends() const override { return true; }

  StatusOr<void*> borrow(SlotIndex slot, uint64_t offset) override {
    // The mapping is read only: the views' users cannot write through it.
    return const_cast<std::byte*>(at(slot, offset));
  }

  Status complete(SlotIndex) override { return absl::OkStatus(); }

  StatusOr<bool> tryUnmap() override {
    memory_ = {};
    keep_.reset();
    return true;
  }

 private:
  const std::byte* at(SlotIndex slot, uint64_t offset) const {
    const uint64_t begin = slot.value * layout_.slot_stride + offset;
    LATENTD_CHECK(begin < memory_.size(), "a read beyond the pool, or after it was unmapped [C8]");
    return memory_.data() + begin;
  }

  std::span<const std::byte> memory_;
  const PoolLayout layout_;
  std::shared_ptr<const void> keep_;
};

}  // namespace

Status checkHostAttachment(const std::string& attachment) {
  if (attachment == kHostAttachment) return absl::OkStatus();
  return makeStatus(absl::StatusCode::kInvalidArgument, "what a peer sent is not of a pool in host memory");
}

std::unique_ptr<ExportedPool> makeHostPool(std::span<std::byte> memory, const PoolLayout& layout, Handle handle) {
  return std::make_unique<HostExportedPool>(memory, layout, std::move(handle));
}

std::shared_ptr<ImportedPool> importHostPool(std::span<const std::byte> memory, const PoolLayout& layout,
                                             std::shared_ptr<const void> keep) {
  return std::make_shared<HostImportedPool>(memory, layout, std::move(keep));
}

}  // namespace latentd::channel
