#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "channel/channel.h"

namespace latentd::channel {

// An allocator for receive() on the CPU that keeps the buffers of tensors that were let go and hands them out again: a
// fresh allocation of a large tensor costs a page fault for every 4 KiB, about as much as the copy itself.
// Owner: the worker. Thread: any; tensors may outlive the cache. States: none.
// Failure: RESOURCE_EXHAUSTED when the system has no memory.
class BufferCache final : public Allocator {
 public:
  // Idle buffers hold at most this many bytes; the least recently used go first.
  explicit BufferCache(uint64_t idle_bytes_max);
  ~BufferCache() override;

  StatusOr<TensorView> allocate(DType dtype, const std::vector<int64_t>& shape, Device device) override;
  uint64_t idleBytes() const;

 private:
  class Pool;
  std::shared_ptr<Pool> pool_;  // owners: the cache and every buffer that is out
};

}  // namespace latentd::channel
