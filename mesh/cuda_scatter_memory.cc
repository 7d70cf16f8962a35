#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ops/from_blob.h>
#include <c10/core/InferenceMode.h>
#include <c10/cuda/CUDAStream.h>

#include "mesh/agreement.h"
#include "mesh/communication_error.h"
#include "mesh/round_flags.h"
#include "mesh/round_watch.h"
#include "mesh/scatter_flags.h"
#include "mesh/scatter_memory.h"
#include "runtime/base/log.h"
#include "runtime/cuda/cuda_status.h"
#include "runtime/cuda/event.h"
#include "runtime/cuda/memory.h"
#include "runtime/cuda/stream.h"
#include "runtime/cuda/stream_drain.h"
#include "runtime/cuda/stream_words.h"

namespace latentd::mesh {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using Mark = RoundFlags::Mark;
using Operations = std::vector<cuda::WordOperation>;

// CUDA hands out device memory in blocks of so much, and exports whole blocks: a region has its blocks to itself.
constexpr uint64_t kBlock = uint64_t{2} << 20;
// How long whoever leaves waits for its device, and for its peers to let go of its memory.
constexpr milliseconds kLeaving{5'000};

void require(const Status& status) {
  if (!status.ok()) throw CommunicationError(status);
}

// The pages of all ranks as this rank's device finds them.
StatusOr<std::vector<cuda::PinnedRange>> pinPages(const RoundFlags& flags, size_t ranks) {
  std::vector<cuda::PinnedRange> pinned;
  for (size_t rank = 0; rank < ranks; ++rank) {
    const ShmRegion& page = flags.pageOf(rank);
    LATENTD_ASSIGN_OR_RETURN(cuda::PinnedRange range,
                             cuda::PinnedRange::pin(page.data(), page.bytes(), cuda::PinnedRange::Access::kReadWrite));
    pinned.push_back(std::move(range));
  }
  return pinned;
}

// What a rank needs of its own, before the ranks agree.
struct Parts {
  cuda::StreamWords words;
  cuda::Stream stream;
  cuda::Event submitted;  // by the model
  cuda::Event arrived;
  std::vector<cuda::PinnedRange> pinned;
  std::vector<std::byte*> pages;  // by rank
};

StatusOr<Parts> makeParts(cuda::DeviceIndex device, const RoundFlags& flags, size_t ranks) {
  LATENTD_ASSIGN_OR_RETURN(cuda::StreamWords words, cuda::StreamWords::load());
  LATENTD_ASSIGN_OR_RETURN(cuda::Stream stream, cuda::Stream::create(device, cuda::Stream::Priority::kHigh));
  LATENTD_ASSIGN_OR_RETURN(cuda::Event submitted, cuda::Event::create(device));
  LATENTD_ASSIGN_OR_RETURN(cuda::Event arrived, cuda::Event::create(device));
  LATENTD_ASSIGN_OR_RETURN(std::vector<cuda::PinnedRange> pinned, pinPages(flags, ranks));
  std::vector<std::byte*> pages;
  for (const cuda::PinnedRange& range : pinned) {
    LATENTD_ASSIGN_OR_RETURN(std::byte * page, range.onDevice(device));
    pages.push_back(page);
  }
  return Parts{words, std::move(stream), std::move(submitted), std::move(arrived), std::move(pinned), std::move(pages)};
}

// `device`: where this rank uses it, whichever GPU the memory is on.
at::Tensor bytesAt(void* data, uint64_t bytes, at::Device device, std::shared_ptr<void> owner) {
  const c10::InferenceMode plain(false);  // written to in inference mode and out of it
  return at::for_blob(data, {static_cast<int64_t>(bytes)})
      .deleter([owner = std::move(owner)](void*) {})
      .options(at::TensorOptions(at::kByte).device(device))
      .target_device(device)
      .make_tensor();
}

// Copies run on the copy engines, on a stream of high priority, beside what the model computes. Streams wait for the
// flags of a round, which are words of pinned host memory that all ranks' devices write.
class CudaScatterMemory final : public ScatterMemory {
 public:
  CudaScatterMemory(ProcessGroup& group, std::unique_ptr<RoundFlags> flags, Parts parts)
      : group_(group),
        flags_(std::move(flags)),
        parts_(std::move(parts)),
        watch_(*flags_, group.timeout(), [&group](const Status& cause) { group.fail(cause); }) {}

  StatusOr<std::vector<at::Tensor>> share(uint64_t bytes) override;
  void retire(std::vector<at::Tensor> regions) override;
  void beginRound(uint32_t round) override;
  at::Tensor copyable(const at::Tensor& x) const override;
  void beginCopies(uint32_t round) override;
  void copy(const at::Tensor& target, const at::Tensor& source) override;
  void finishRound(uint32_t round) override;

  void end() noexcept override {
    flags_->end();
    watch_.end();
  }
  void close(std::vector<std::vector<at::Tensor>> regions) noexcept override;

 private:
  cuda::DeviceIndex device() const { return cuda::DeviceIndex(group_.device().index()); }
  size_t rank() const { return static_cast<size_t>(group_.rank()); }
  cuda::StreamView modelStream() const {
    return {c10::cuda::getCurrentCUDAStream(group_.device().index()).stream(), device()};
  }
  // Later copies are after what the model has submitted.
  void followModel() {
    require(parts_.submitted.record(modelStream()));
    require(parts_.submitted.makeWait(parts_.stream.view()));
  }
  // Of all peers: the flags that this rank raises, and those that it waits for.
  void addFlags(Operations& operations, cuda::WordOperation::Kind kind, Mark mark, uint32_t round) const;
  void letGoOfPeers(std::vector<at::Tensor>& regions) const;

  ProcessGroup& group_;
  std::unique_ptr<RoundFlags> flags_;
  Parts parts_;
  RoundWatch watch_;  // declared last: looks at the flags
};

StatusOr<std::vector<at::Tensor>> CudaScatterMemory::share(uint64_t bytes) {
  const uint64_t whole = (bytes + kBlock - 1) / kBlock * kBlock;
  StatusOr<cuda::DeviceBuffer> own = cuda::DeviceBuffer::allocate(device(), whole);
  const StatusOr<Token> mine = own.ok() ? own->exportHandle() : StatusOr<Token>(own.status());
  LATENTD_ASSIGN_OR_RETURN(const std::vector<Token> tokens, exchangeTokens(group_, mine));
  std::vector<at::Tensor> regions(tokens.size());
  Status mapped;
  for (size_t peer = 0; peer < tokens.size() && mapped.ok(); ++peer) {
    if (peer == rank()) continue;
    StatusOr<cuda::ImportedMemory> imported = cuda::ImportedMemory::open(device(), tokens[peer]);
    mapped = imported.status();
    if (!mapped.ok()) continue;
    const auto kept = std::make_shared<cuda::ImportedMemory>(*std::move(imported));
    regions[peer] = bytesAt(kept->data(), bytes, group_.device(), kept);
  }
  const auto kept = std::make_shared<cuda::DeviceBuffer>(*std::move(own));
  regions[rank()] = bytesAt(kept->data(), bytes, group_.device(), kept);
  if (const Status all = agree(group_, mapped); !all.ok()) {
    letGoOfPeers(regions);
    (void)agree(group_, absl::OkStatus());  // nobody maps what goes next
    return all;
  }
  return regions;
}

void CudaScatterMemory::letGoOfPeers(std::vector<at::Tensor>& regions) const {
  for (size_t peer = 0; peer < regions.size(); ++peer)
    if (peer != rank()) regions[peer] = at::Tensor();
}

// What the devices still do with the regions ends first; an exporter's memory goes after its importers' mappings [M12].
void CudaScatterMemory::retire(std::vector<at::Tensor> regions) {
  for (const cuda::StreamView stream : {parts_.stream.view(), modelStream()})
    require(cuda::drain(stream, group_.timeout()));
  letGoOfPeers(regions);
  require(agree(group_, absl::OkStatus()));
}

void CudaScatterMemory::addFlags(Operations& operations, cuda::WordOperation::Kind kind, Mark mark,
                                 uint32_t round) const {
  const bool raised = kind == cuda::WordOperation::Kind::kWrite;
  for (size_t peer = 0; peer < parts_.pages.size(); ++peer) {
    if (peer == rank()) continue;
    std::byte* const page = parts_.pages[raised ? peer : rank()];
    operations.push_back({kind, page + RoundFlags::offsetOf(raised ? rank() : peer, mark), round});
  }
}

void CudaScatterMemory::beginRound(uint32_t round) {
  watch_.begun(round);
  followModel();
  Operations operations;
  addFlags(operations, cuda::WordOperation::Kind::kWrite, Mark::kFree, round);
  addFlags(operations, cuda::WordOperation::Kind::kWaitAtLeast, Mark::kFree, round);
  require(parts_.words.submit(parts_.stream.view(), operations));
}

at::Tensor CudaScatterMemory::copyable(const at::Tensor& x) const {
  const int64_t row = x.size(2) * x.size(3);
  const bool dense = (x.size(3) == 1 || x.stride(3) == 1) && (x.size(2) == 1 || x.stride(2) == x.size(3));
  return dense && (x.size(1) == 1 || x.stride(1) >= row) ? x : x.contiguous();
}

void CudaScatterMemory::beginCopies(uint32_t) { followModel(); }

void CudaScatterMemory::copy(const at::Tensor& target, const at::Tensor& source) {
  const auto item = static_cast<size_t>(source.element_size());
  const size_t width = source.size(2) * source.size(3) * item;
  const auto rows = static_cast<size_t>(source.size(1));
  // Of one row there is no next: any pitch that is none too small.
  const auto pitch = [&](const at::Tensor& x) { return rows == 1 ? width : x.stride(1) * item; };
  const cuda::DeviceGuard guard(device());
  for (int64_t batch = 0; batch < source.size(0); ++batch) {
    auto* const to = static_cast<std::byte*>(target.mutable_data_ptr()) + batch * target.stride(0) * item;
    const auto* const from = static_cast<const std::byte*>(source.const_data_ptr()) + batch * source.stride(0) * item;
    require(cuda::cudaStatus(cudaMemcpy2DAsync(to, pitch(target), from, pitch(source), width, rows, cudaMemcpyDefault,
                                               parts_.stream.view().get()),
                             "copying heads to a peer"));
  }
}

void CudaScatterMemory::finishRound(uint32_t round) {
  Operations operations;
  addFlags(operations, cuda::WordOperation::Kind::kWrite, Mark::kWritten, round);
  addFlags(operations, cuda::WordOperation::Kind::kWaitAtLeast, Mark::kWritten, round);
  operations.push_back({cuda::WordOperation::Kind::kWrite, parts_.pages[rank()] + RoundFlags::reachedOffset(), round});
  require(parts_.words.submit(parts_.stream.view(), operations));
  require(parts_.arrived.record(parts_.stream.view()));
  require(parts_.arrived.makeWait(modelStream()));
}

void CudaScatterMemory::close(std::vector<std::vector<at::Tensor>> regions) noexcept {
  if (!cuda::drain(parts_.stream.view(), kLeaving).ok()) {
    // It waits for a peer, and nobody else may say that the mesh is over.
    end();
    const Status drained = cuda::drain(parts_.stream.view(), kLeaving);
    if (!drained.ok())
      getLogger("mesh")->warn("a device still scatters heads as its rank leaves: " + messageOf(drained));
  }
  for (std::vector<at::Tensor>& of_ranks : regions)
    letGoOfPeers(of_ranks);
  flags_->leave();
  flags_->awaitLeaving(steady_clock::now() + kLeaving);
}

}  // namespace

StatusOr<std::unique_ptr<ScatterMemory>> makeCudaScatterMemory(ProcessGroup& group) {
  LATENTD_ASSIGN_OR_RETURN(RoundFlags shared, shareFlags(group));
  auto flags = std::make_unique<RoundFlags>(std::move(shared));
  StatusOr<Parts> parts = makeParts(cuda::DeviceIndex(group.device().index()), *flags, group.members().size());
  LATENTD_RETURN_IF_ERROR(agree(group, parts.status()));
  return std::make_unique<CudaScatterMemory>(group, std::move(flags), *std::move(parts));
}

}  // namespace latentd::mesh
