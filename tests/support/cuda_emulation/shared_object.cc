#include "tests/support/cuda_emulation/shared_object.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <random>
#include <string>
#include <utility>

#include "runtime/base/mutex.h"

namespace latentd::testing {
namespace {

constexpr uint64_t kPage = 4096;

uint64_t mappedBytes(uint64_t bytes) { return kPage + (bytes + kPage - 1) / kPage * kPage; }

// The memfd. Never destroyed: threads of streams outlive main().
class Arena {
 public:
  static Arena& instance() {
    static auto* const arena = new Arena;
    return *arena;
  }
  int fd() const { return fd_; }

  // Nothing is given out twice: whoever kept an old handle finds nothing of another object there.
  uint64_t take(uint64_t bytes) {
    const MutexLock lock(mutex_);
    return std::exchange(end_, end_ + bytes);
  }
  void giveBack(uint64_t offset, uint64_t bytes) const {
    ::fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset), static_cast<off_t>(bytes));
  }
  uint64_t newId() {
    const MutexLock lock(mutex_);
    return random_() | 1;
  }

 private:
  Arena() : fd_(::memfd_create("emulated-cuda", MFD_CLOEXEC)) {
    // Sparse: what is not written takes no memory.
    if (fd_ < 0 || ::ftruncate(fd_, off_t{1} << 40) != 0) ::abort();
  }

  const int fd_;
  Mutex mutex_;
  std::mt19937_64 random_ GUARDED_BY(mutex_){std::random_device()()};
  uint64_t end_ GUARDED_BY(mutex_) = 0;
};

std::byte* map(int fd, uint64_t offset, uint64_t bytes) {
  void* const mapped =
      ::mmap(nullptr, mappedBytes(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, fd, static_cast<off_t>(offset));
  return mapped == MAP_FAILED ? nullptr : static_cast<std::byte*>(mapped);
}

}  // namespace

std::unique_ptr<SharedObject> SharedObject::create(uint64_t bytes) {
  Arena& arena = Arena::instance();
  const uint64_t offset = arena.take(mappedBytes(bytes));
  std::byte* const mapped = map(arena.fd(), offset, bytes);
  if (mapped == nullptr) {
    arena.giveBack(offset, mappedBytes(bytes));
    return nullptr;
  }
  const Handle handle{::getpid(), arena.fd(), offset, bytes, arena.newId(), {}};
  std::memcpy(mapped, &handle.id, sizeof(handle.id));
  return std::unique_ptr<SharedObject>(new SharedObject(handle, mapped, true));
}

std::unique_ptr<SharedObject> SharedObject::import(const Handle& handle) {
  if (handle.id == 0 || handle.pid == ::getpid()) return nullptr;
  const std::string path = "/proc/" + std::to_string(handle.pid) + "/fd/" + std::to_string(handle.fd);
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return nullptr;
  std::byte* const mapped = map(fd, handle.offset, handle.bytes);
  ::close(fd);
  if (mapped == nullptr) return nullptr;
  std::unique_ptr<SharedObject> object(new SharedObject(handle, mapped, false));
  return std::memcmp(mapped, &handle.id, sizeof(handle.id)) == 0 ? std::move(object) : nullptr;
}

SharedObject::~SharedObject() {
  ::munmap(mapped_, mappedBytes(handle_.bytes));
  if (exported_) Arena::instance().giveBack(handle_.offset, mappedBytes(handle_.bytes));
}

void* SharedObject::data() const { return mapped_ + kPage; }

std::optional<SharedObject::Handle> SharedObject::handle() const {
  return exported_ ? std::optional(handle_) : std::nullopt;
}

}  // namespace latentd::testing
