#include "runtime/worker/memory_limit.h"

#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>
#include <malloc.h>

#include "runtime/worker/process_memory.h"

namespace latentd::worker {
namespace {

// Allocations from here on are mappings of their own, which end with them; in the heap, whose mappings stay, one that
// lives long would keep all that was freed below it. Glibc's own bound grows with what is freed, up to 32 MiB.
constexpr int kMappedBytesMin = 1 << 20;
// Free memory at the end of the heap that is kept: small allocations come and go with every operator.
constexpr int kHeapKeptBytes = 64 << 20;

class ReservingAllocator final : public c10::Allocator {
 public:
  explicit ReservingAllocator(c10::Allocator& inner) : inner_(inner) {}

  c10::DataPtr allocate(size_t bytes) override {
    // Smaller ones come from the heap as a rule, and a look at the process costs more than they do.
    if (bytes >= static_cast<size_t>(kMappedBytesMin)) {
      const uint64_t left = mappableBytes();
      const bool fits = left >= MemoryLimit::kLibrariesBytes && bytes <= left - MemoryLimit::kLibrariesBytes;
      TORCH_CHECK_WITH(OutOfMemoryError, fits, "a tensor of ", bytes, " bytes does not fit into the ", left >> 20,
                       " MiB that are left, some of which libraries need");
    }
    return inner_.allocate(bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return inner_.raw_deleter(); }
  void copy_data(void* target, const void* source, size_t bytes) const override {
    default_copy_data(target, source, bytes);
  }

 private:
  c10::Allocator& inner_;
};

}  // namespace

MemoryLimit::MemoryLimit(c10::Allocator& inner)
    : inner_(inner), allocator_(std::make_unique<ReservingAllocator>(inner)) {
  ::mallopt(M_MMAP_THRESHOLD, kMappedBytesMin);
  ::mallopt(M_TRIM_THRESHOLD, kHeapKeptBytes);
  c10::SetCPUAllocator(allocator_.get());
}

MemoryLimit::~MemoryLimit() { c10::SetCPUAllocator(&inner_); }

std::unique_ptr<MemoryLimit> MemoryLimit::apply() {
  if (!hasMemoryLimit()) return nullptr;
  return std::unique_ptr<MemoryLimit>(new MemoryLimit(*c10::GetCPUAllocator()));
}

}  // namespace latentd::worker
