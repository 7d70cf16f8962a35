#include "channel/cuda_pool.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "channel/cuda_copy.h"
#include "channel/cuda_events.h"
#include "channel/limits.h"
#include "runtime/base/check.h"
#include "runtime/base/mutex.h"
#include "runtime/cuda/cuda_status.h"
#include "runtime/cuda/device.h"
#include "runtime/cuda/memory.h"
#include "runtime/cuda/stream_drain.h"

namespace latentd::channel {
namespace {

using cuda::Event;

// A copy of a few bytes that stands for a fill or a read: what the driver does for it is what it does for a large one.
// Owner: a pool. Thread: the filler's or the reader's.
class RehearsedCopy {
 public:
  static StatusOr<RehearsedCopy> make(cuda::DeviceIndex device) {
    LATENTD_ASSIGN_OR_RETURN(cuda::DeviceBuffer buffer, cuda::DeviceBuffer::allocate(device, 2 * kBytes));
    LATENTD_ASSIGN_OR_RETURN(Event copied, Event::create(device));
    return RehearsedCopy(std::move(buffer), std::move(copied));
  }
  StatusOr<bool> complete() const { return copied_.complete(); }
  // Unless the last one is still under way. What fails here fails, and is told, when it is for real.
  void rehearse(cuda::StreamView stream) {
    if (complete().value_or(false)) submit(stream).IgnoreError();
  }

 private:
  static constexpr uint64_t kBytes = 256;
  RehearsedCopy(cuda::DeviceBuffer buffer, Event copied) : buffer_(std::move(buffer)), copied_(std::move(copied)) {}

  Status submit(cuda::StreamView stream) {
    LATENTD_RETURN_IF_ERROR(copied_.makeWait(stream));
    const cuda::DeviceGuard guard(stream.device());
    auto* const bytes = static_cast<std::byte*>(buffer_.data());
    LATENTD_CUDA_RETURN_IF_ERROR(cudaMemcpyAsync(bytes, bytes + kBytes, kBytes, cudaMemcpyDefault, stream.get()),
                                 "rehearsing a copy");
    return copied_.record(stream);
  }

  cuda::DeviceBuffer buffer_;
  Event copied_;
};

// A slot is filled part by part, each with a ready event of its own: a peer reads one while the next is being filled.
// What a pool and its imports agree on is its layout. Whoever does not read in parts waits for the last one's event.
struct SlotParts {
  explicit SlotParts(const PoolLayout& layout)
      : bytes(roundUp(std::max(kPartBytesMin, layout.slot_stride / kPartsMax), kSlotAlignment)),
        // The leaves of a one-shot buffer are filled one by one.
        count(layout.one_shot ? 1 : static_cast<uint32_t>((layout.slot_stride + bytes - 1) / bytes)) {}

  // Of a slot's events.
  size_t event(SlotIndex slot, uint64_t part) const { return size_t{slot.value} * count + part; }

  const uint64_t bytes;  // of every part but the last
  const uint32_t count;

 private:
  // More hide more of the first copy, and take longer to submit.
  static constexpr uint64_t kPartsMax = 4;
  // A copy that is worth the two calls of another part: 40 us between peers.
  static constexpr uint64_t kPartBytesMin = 16 << 20;
};

// How a consumer rank reads, before the handles of its completion events.
enum class Reads : char { kWhole = 0, kInParts = 1 };

// ---- producer -----------------------------------------------------------------------------------------------
class CudaExportedPool final : public ExportedPool {
 public:
  CudaExportedPool(const PoolLayout& layout, const CudaOptions& options, cuda::DeviceBuffer buffer,
                   std::vector<Event> ready, RehearsedCopy rehearsed, std::string handle)
      : layout_(layout),
        options_(options),
        parts_(layout),
        buffer_(std::move(buffer)),
        ready_(std::move(ready)),
        rehearsed_(std::move(rehearsed)),
        handle_(std::move(handle)) {}

  // Consumers have unmapped, or are dead. A fill of this process may still be under way.
  ~CudaExportedPool() override {
    const StatusOr<bool> filled = isIdle();
    if (!filled.ok() || !*filled) cuda::drain(options_.stream, options_.device_timeout).IgnoreError();
  }

  Handle handle() const override { return {handle_, {}, nullptr}; }

  Status attach(Rank consumer, const std::string& attachment) override {
    LATENTD_ASSIGN_OR_RETURN(std::vector<Event> events,
                             importEvents(options_.stream.device(), attachment, sizeof(Reads), layout_.slots));
    MutexLock lock(mutex_);
    readers_.insert_or_assign(consumer.value, Reader{static_cast<Reads>(attachment.front()), std::move(events)});
    return absl::OkStatus();
  }

  Status fill(SlotIndex slot, uint64_t offset, const TensorView& source, uint64_t copied_by) override {
    const uint64_t begin = slot.value * layout_.slot_stride + offset;
    LATENTD_CHECK(begin + byteCount(source) <= layout_.bytes, "a fill beyond the pool [C8]");
    LATENTD_RETURN_IF_ERROR(waitForReaders(slot, copied_by));
    std::byte* const target = static_cast<std::byte*>(buffer_.data()) + begin;
    const bool in_parts = parts_.count > 1 && mayBeReadInParts();
    if (in_parts && isContiguous(source)) return fillInParts(slot, target, source);
    LATENTD_RETURN_IF_ERROR(fillAsync(target, source, options_.stream));
    for (uint32_t part = in_parts ? 0 : parts_.count - 1; part < parts_.count; ++part)
      LATENTD_RETURN_IF_ERROR(ready_[parts_.event(slot, part)].record(options_.stream));
    return absl::OkStatus();
  }

  void rehearse() override { rehearsed_.rehearse(options_.stream); }

  StatusOr<bool> tryDropAttachment(Rank consumer) override {
    // A fill's waits for completion events come before its ready record.
    LATENTD_ASSIGN_OR_RETURN(const bool filled, isIdle());
    MutexLock lock(mutex_);
    if (filled) readers_.erase(consumer.value);
    return filled;
  }

 private:
  struct Reader {
    Reads reads;
    std::vector<Event> completed;  // by slot; imported
  };

  // Also by a rank that has not said.
  bool mayBeReadInParts() const {
    MutexLock lock(mutex_);
    const auto in_parts = [](const auto& reader) { return reader.second.reads != Reads::kWhole; };
    return readers_.size() < layout_.consumers || std::any_of(readers_.begin(), readers_.end(), in_parts);
  }

  Status fillInParts(SlotIndex slot, std::byte* target, const TensorView& source) {
    const uint64_t bytes = byteCount(source);
    for (uint32_t part = 0; part < parts_.count; ++part) {
      const uint64_t begin = std::min(part * parts_.bytes, bytes);
      const uint64_t end = std::min(begin + parts_.bytes, bytes);
      LATENTD_RETURN_IF_ERROR(copyBytesAsync(target + begin, static_cast<const std::byte*>(source.data) + begin,
                                             end - begin, options_.stream));
      LATENTD_RETURN_IF_ERROR(ready_[parts_.event(slot, part)].record(options_.stream));
    }
    return absl::OkStatus();
  }

  StatusOr<bool> isIdle() const {
    LATENTD_ASSIGN_OR_RETURN(const bool filled, allComplete(ready_));
    return filled ? rehearsed_.complete() : StatusOr<bool>(false);
  }

  Status waitForReaders(SlotIndex slot, uint64_t copied_by) {
    MutexLock lock(mutex_);
    for (const auto& [consumer, reader] : readers_) {
      if ((copied_by >> consumer & 1) == 0) continue;
      const Event& completed = reader.completed[slot.value];
      LATENTD_ASSIGN_OR_RETURN(const bool complete, completed.complete());
      if (!complete) LATENTD_RETURN_IF_ERROR(completed.makeWait(options_.stream));
    }
    return absl::OkStatus();
  }

  const PoolLayout layout_;
  const CudaOptions options_;
  const SlotParts parts_;
  cuda::DeviceBuffer buffer_;
  std::vector<Event> ready_;  // by slot and part
  RehearsedCopy rehearsed_;
  const std::string handle_;
  mutable Mutex mutex_;
  std::map<uint32_t, Reader> readers_ GUARDED_BY(mutex_);  // by consumer rank
};

// ---- consumer -----------------------------------------------------------------------------------------------

class CudaImportedPool final : public ImportedPool {
 public:
  CudaImportedPool(const PoolLayout& layout, const CudaOptions& options, cuda::ImportedMemory memory,
                   std::vector<Event> ready, std::vector<Event> completed, std::optional<RehearsedCopy> rehearsed,
                   Reads reads, std::string attachment)
      : layout_(layout),
        options_(options),
        parts_(layout),
        memory_(std::move(memory)),
        ready_(std::move(ready)),
        completed_(std::move(completed)),
        rehearsed_(std::move(rehearsed)),
        reads_(reads),
        attachment_(std::move(attachment)) {}

  ~CudaImportedPool() override {
    const StatusOr<bool> read = isIdle();
    if (!read.ok() || !*read) cuda::drain(options_.stream, options_.device_timeout).IgnoreError();
  }

  std::string attachment() const override { return attachment_; }

  Status read(SlotIndex slot, uint64_t offset, std::span<const CopyRegion> regions, const TensorView& target) override {
    const uint64_t element = byteSize(target.dtype);
    for (const CopyRegion& region : regions) {
      const std::optional<ByteRun> run = reads_ == Reads::kInParts ? asRun(region, element) : std::nullopt;
      if (run) {
        LATENTD_RETURN_IF_ERROR(readInParts(slot, *run, static_cast<std::byte*>(target.data)));
      } else {
        LATENTD_RETURN_IF_ERROR(waitReady(slot, parts_.count - 1));
        LATENTD_RETURN_IF_ERROR(readAsync(target, at(slot, offset), {&region, 1}, options_.stream));
      }
    }
    return absl::OkStatus();
  }

  bool lends() const override { return true; }

  void rehearse() override {
    if (rehearsed_) rehearsed_->rehearse(options_.stream);
  }

  StatusOr<void*> borrow(SlotIndex slot, uint64_t offset) override {
    LATENTD_RETURN_IF_ERROR(waitReady(slot, parts_.count - 1));
    return at(slot, offset);
  }

  Status complete(SlotIndex slot) override {
    LATENTD_RETURN_IF_ERROR(completed_[slot.value].record(options_.stream));
    // The exporter of a one-shot buffer has no event of ours, and frees it at the acknowledgement.
    return layout_.one_shot ? cuda::drain(options_.stream, options_.device_timeout) : absl::OkStatus();
  }

  StatusOr<bool> tryUnmap() override {
    LATENTD_ASSIGN_OR_RETURN(const bool idle, isIdle());
    if (!idle) return false;
    memory_.reset();
    ready_.clear();
    return true;
  }

 private:
  Status readInParts(SlotIndex slot, const ByteRun& run, std::byte* target) const {
    const uint64_t end = run.source + run.bytes;
    for (uint64_t begin = run.source; begin < end;) {
      const uint64_t part = begin / parts_.bytes;
      const uint64_t bytes = std::min((part + 1) * parts_.bytes, end) - begin;
      LATENTD_RETURN_IF_ERROR(waitReady(slot, part));
      LATENTD_RETURN_IF_ERROR(
          copyBytesAsync(target + run.target + (begin - run.source), at(slot, begin), bytes, options_.stream));
      begin += bytes;
    }
    return absl::OkStatus();
  }

  // The record was submitted before the fill of this slot was counted. Whether it is complete is not asked
  // first: where two contexts share a device, the wait is what makes this one's turn come while the copy is submitted.
  Status waitReady(SlotIndex slot, uint64_t part) const {
    LATENTD_CHECK(memory_.has_value(), "a read after the pool was unmapped [C13]");
    return ready_[parts_.event(slot, part)].makeWait(options_.stream);
  }

  StatusOr<bool> isIdle() const {
    LATENTD_ASSIGN_OR_RETURN(const bool read, allComplete(completed_));
    return read && rehearsed_ ? rehearsed_->complete() : StatusOr<bool>(read);
  }

  std::byte* at(SlotIndex slot, uint64_t offset) const {
    const uint64_t begin = slot.value * layout_.slot_stride + offset;
    LATENTD_CHECK(begin < layout_.bytes, "a read beyond the pool [C8]");
    return static_cast<std::byte*>(memory_->data()) + begin;
  }

  const PoolLayout layout_;
  const CudaOptions options_;
  const SlotParts parts_;
  std::optional<cuda::ImportedMemory> memory_;
  std::vector<Event> ready_;      // by slot and part; imported
  std::vector<Event> completed_;  // by slot
  std::optional<RehearsedCopy> rehearsed_;
  const Reads reads_;
  const std::string attachment_;
};

}  // namespace

StatusOr<std::unique_ptr<ExportedPool>> makeCudaPool(const PoolLayout& layout, const CudaOptions& options) {
  const cuda::DeviceIndex device = options.stream.device();
  // Smaller allocations share a block, and a handle is one of the whole block.
  LATENTD_ASSIGN_OR_RETURN(cuda::DeviceBuffer buffer,
                           cuda::DeviceBuffer::allocate(device, roundUp(layout.bytes, kPoolGranularity)));
  LATENTD_ASSIGN_OR_RETURN(std::vector<Event> ready, createEvents(device, layout.slots * SlotParts(layout).count));
  LATENTD_ASSIGN_OR_RETURN(RehearsedCopy rehearsed, RehearsedCopy::make(device));
  std::string handle;
  LATENTD_ASSIGN_OR_RETURN(const cuda::MemoryHandle memory, buffer.exportHandle());
  appendRaw(handle, memory);
  LATENTD_ASSIGN_OR_RETURN(const std::string events, exportEvents(ready));
  handle.append(events);
  return std::unique_ptr<ExportedPool>(std::make_unique<CudaExportedPool>(
      layout, options, std::move(buffer), std::move(ready), std::move(rehearsed), std::move(handle)));
}

StatusOr<std::shared_ptr<ImportedPool>> importCudaPool(const std::string& handle, const PoolLayout& layout,
                                                       const CudaOptions& options) {
  const cuda::DeviceIndex device = options.stream.device();
  LATENTD_ASSIGN_OR_RETURN(std::vector<Event> ready, importEvents(device, handle, sizeof(cuda::MemoryHandle),
                                                                  layout.slots * SlotParts(layout).count));
  LATENTD_ASSIGN_OR_RETURN(cuda::ImportedMemory memory,
                           cuda::ImportedMemory::open(device, rawAt<cuda::MemoryHandle>(handle, 0)));
  LATENTD_ASSIGN_OR_RETURN(std::vector<Event> completed, createEvents(device, layout.slots));
  // Where contexts take turns on a device that both sides use, a copy would be a turn of this one, just when the
  // producer's is to have it; and each wait for a part could be one.
  const bool mps = cuda::isServedByMps(device).value_or(false);
  const bool takes_turns = !mps && layout.device.index == static_cast<uint32_t>(device.value);
  std::optional<RehearsedCopy> rehearsed;
  if (!takes_turns && !layout.one_shot) {
    LATENTD_ASSIGN_OR_RETURN(rehearsed, RehearsedCopy::make(device));
  }
  const Reads reads = takes_turns || SlotParts(layout).count == 1 ? Reads::kWhole : Reads::kInParts;
  std::string attachment(1, static_cast<char>(reads));
  LATENTD_ASSIGN_OR_RETURN(const std::string events, exportEvents(completed));
  attachment.append(events);
  return std::shared_ptr<ImportedPool>(
      std::make_shared<CudaImportedPool>(layout, options, std::move(memory), std::move(ready), std::move(completed),
                                         std::move(rehearsed), reads, std::move(attachment)));
}

}  // namespace latentd::channel
