#pragma once

#include <cstdint>
#include <memory>

#include <c10/core/Allocator.h>

namespace latentd::worker {

// What a limit of the process's memory (RLIMIT_DATA, the group's memory_max) takes beside the limit: memory that a job
// gave back is there for the next one, and tensors leave some of it to libraries, which crash where they get none.
// Owner: the main, for as long as tensors live. Thread: apply() before any other. States: applied until destroyed.
// Failure: a tensor that does not fit is a c10::OutOfMemoryError.
class MemoryLimit {
 public:
  // Of the limit, what no tensor takes: scratch memory of kernels, threads, messages.
  static constexpr uint64_t kLibrariesBytes = uint64_t{16} << 20;

  // Null where there is no limit: giving everything back to the kernel and taking it anew costs time.
  static std::unique_ptr<MemoryLimit> apply();
  ~MemoryLimit();

 private:
  explicit MemoryLimit(c10::Allocator& inner);

  c10::Allocator& inner_;
  const std::unique_ptr<c10::Allocator> allocator_;
};

}  // namespace latentd::worker
