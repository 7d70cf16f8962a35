#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

namespace latentd::testing {

// Memory that another process maps by its handle, as device memory and interprocess events are: a piece of the one
// memfd that a process has for all of them, found through /proc. It has no name, and goes with its last mapping.
// Owner: the tables of the emulation. Thread: any. Failure: null for want of memory, of the exporter, or of the memory
// that it has freed.
class SharedObject {
 public:
  // As long as CUDA's handles.
  struct Handle {
    int32_t pid = 0;
    int32_t fd = 0;
    uint64_t offset = 0;
    uint64_t bytes = 0;
    uint64_t id = 0;  // the first word of what lies there
    uint64_t unused[4] = {};
  };
  static_assert(sizeof(Handle) == 64);

  static std::unique_ptr<SharedObject> create(uint64_t bytes);
  // Null for a handle of this process too: CUDA does not import what it exported itself.
  static std::unique_ptr<SharedObject> import(const Handle& handle);
  ~SharedObject();
  SharedObject(const SharedObject&) = delete;
  SharedObject& operator=(const SharedObject&) = delete;

  void* data() const;
  uint64_t bytes() const { return handle_.bytes; }
  uint64_t id() const { return handle_.id; }
  // Of one that was created here.
  std::optional<Handle> handle() const;

 private:
  SharedObject(const Handle& handle, std::byte* mapped, bool exported)
      : handle_(handle), mapped_(mapped), exported_(exported) {}

  const Handle handle_;
  std::byte* const mapped_;  // a page with the id, then the data
  const bool exported_;      // else imported
};

}  // namespace latentd::testing
