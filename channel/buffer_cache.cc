#include "channel/buffer_cache.h"

#include <sys/mman.h>

#include <cerrno>
#include <iterator>
#include <list>
#include <string>
#include <utility>

#include "channel/limits.h"
#include "channel/tensor_desc.h"
#include "runtime/base/mutex.h"

namespace latentd::channel {
namespace {

// Sizes of buffers are multiples of this, so that shapes that differ by little share buffers.
constexpr uint64_t kGranularity = 64 << 10;

struct Buffer {
  void* data = nullptr;
  uint64_t bytes = 0;
};

}  // namespace

// Idle buffers, the least recently used first.
class BufferCache::Pool : public std::enable_shared_from_this<BufferCache::Pool> {
 public:
  explicit Pool(uint64_t idle_bytes_max) : idle_bytes_max_(idle_bytes_max) {}
  ~Pool() {
    for (const Buffer& buffer : idle_)
      ::munmap(buffer.data, buffer.bytes);
  }

  StatusOr<Buffer> take(uint64_t bytes) {
    {
      MutexLock lock(mutex_);
      for (auto buffer = idle_.begin(); buffer != idle_.end(); ++buffer) {
        if (buffer->bytes != bytes) continue;
        const Buffer found = *buffer;
        idle_.erase(buffer);
        idle_bytes_ -= bytes;
        return found;
      }
    }
    void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) return errnoStatus(errno, "allocating a buffer of " + std::to_string(bytes) + " bytes");
    ::madvise(data, bytes, MADV_HUGEPAGE);  // a hint: it works without
    return Buffer{data, bytes};
  }

  void giveBack(const Buffer& buffer) noexcept {
    std::list<Buffer> dropped;
    {
      MutexLock lock(mutex_);
      idle_.push_back(buffer);
      idle_bytes_ += buffer.bytes;
      while (idle_bytes_ > idle_bytes_max_) {
        idle_bytes_ -= idle_.front().bytes;
        dropped.splice(dropped.end(), idle_, idle_.begin());
      }
    }
    for (const Buffer& each : dropped)
      ::munmap(each.data, each.bytes);
  }

  uint64_t idleBytes() const {
    MutexLock lock(mutex_);
    return idle_bytes_;
  }

 private:
  const uint64_t idle_bytes_max_;
  mutable Mutex mutex_;
  std::list<Buffer> idle_ GUARDED_BY(mutex_);
  uint64_t idle_bytes_ GUARDED_BY(mutex_) = 0;
};

BufferCache::BufferCache(uint64_t idle_bytes_max) : pool_(std::make_shared<Pool>(idle_bytes_max)) {}

BufferCache::~BufferCache() = default;

uint64_t BufferCache::idleBytes() const { return pool_->idleBytes(); }

StatusOr<TensorView> BufferCache::allocate(DType dtype, const std::vector<int64_t>& shape, Device device) {
  if (device.type != DeviceType::kCpu) {
    return makeStatus(absl::StatusCode::kInvalidArgument, "this allocator serves the cpu, not " + toString(device));
  }
  LATENTD_ASSIGN_OR_RETURN(const TensorDesc desc, TensorDesc::make(dtype, shape, device));
  TensorView view{dtype, shape, contiguousStrides(shape), nullptr, device};
  if (desc.bytes() == 0) return view;
  LATENTD_ASSIGN_OR_RETURN(const Buffer buffer, pool_->take(roundUp(desc.bytes(), kGranularity)));
  view.data = buffer.data;
  view.owner = std::shared_ptr<void>(buffer.data, [pool = pool_, buffer](void*) { pool->giveBack(buffer); });
  return view;
}

}  // namespace latentd::channel
