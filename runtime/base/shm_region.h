#pragma once

#include <cstddef>
#include <string>

#include "runtime/base/status.h"
#include "runtime/base/unique_fd.h"

namespace latentd {

// A memfd mapped into this process, for memory that two processes share. Its pages are allocated at creation and its
// size is sealed (shrink, grow, seal), so that an access never faults whatever the peer does. It has no name, so that
// a crash leaves nothing behind; the descriptor travels by inheritance or SCM_RIGHTS.
// Owner: whoever holds it; move only. Thread: creation and destruction on one thread, the bytes are the users' to
// order. States: mapped until destroyed; default-constructed or moved-from is empty. Failure: create() and map() return
// it.
class ShmRegion {
 public:
  // What a process may map the memory for.
  enum class Access { kRead, kReadWrite };

  ShmRegion() = default;
  ShmRegion(ShmRegion&& other) noexcept;
  ShmRegion& operator=(ShmRegion&& other) noexcept;
  ~ShmRegion();

  // Zeroed memory, mapped here for writing. `peers` is what others can map it for, whatever they try. `name` shows in
  // /proc/PID/maps. RESOURCE_EXHAUSTED when memory does not suffice.
  static StatusOr<ShmRegion> create(const std::string& name, size_t bytes, Access peers = Access::kReadWrite);
  // A region from a peer: refuses a descriptor that is not sealed or that is smaller than `bytes_min`.
  static StatusOr<ShmRegion> map(UniqueFd fd, size_t bytes_min, Access access = Access::kReadWrite);

  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  int fd() const { return fd_.get(); }

 private:
  static StatusOr<ShmRegion> mapWhole(UniqueFd fd, size_t bytes, Access access);
  ShmRegion(UniqueFd fd, std::byte* data, size_t bytes) : fd_(std::move(fd)), data_(data), bytes_(bytes) {}
  void unmap() noexcept;

  UniqueFd fd_;
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

// A second descriptor of the same file (close-on-exec). Locks and offsets are shared with the first.
StatusOr<UniqueFd> duplicateFd(int fd);

}  // namespace latentd
