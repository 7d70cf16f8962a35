#include "runtime/base/shm_region.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <utility>

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010  // Linux 5.1; older C libraries do not name it
#endif

namespace latentd {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

}  // namespace

ShmRegion::ShmRegion(ShmRegion&& other) noexcept
    : fd_(std::move(other.fd_)), data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

ShmRegion& ShmRegion::operator=(ShmRegion&& other) noexcept {
  if (this != &other) {
    unmap();
    fd_ = std::move(other.fd_);
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
  }
  return *this;
}

ShmRegion::~ShmRegion() { unmap(); }

void ShmRegion::unmap() noexcept {
  if (data_ != nullptr) ::munmap(data_, bytes_);
  data_ = nullptr;
}

StatusOr<ShmRegion> ShmRegion::create(const std::string& name, size_t bytes, Access peers) {
  const std::string what = "shared memory \"" + name + "\" of " + std::to_string(bytes) + " bytes";
  if (bytes == 0) return absl::InvalidArgumentError(what + ": must not be empty");
  UniqueFd fd(::memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return errnoStatus(errno, what + ": memfd_create");
  if (::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) return errnoStatus(errno, what + ": ftruncate");
  int failed = 0;
  do {
    failed = ::posix_fallocate(fd.get(), 0, static_cast<off_t>(bytes));
  } while (failed == EINTR);
  if (failed != 0) return errnoStatus(failed, what + ": fallocate");
  LATENTD_ASSIGN_OR_RETURN(ShmRegion region, mapWhole(std::move(fd), bytes, Access::kReadWrite));
  // After our own mapping: the last seal refuses the writable ones that come later.
  const int seals = kSeals | (peers == Access::kRead ? F_SEAL_FUTURE_WRITE : 0);
  if (::fcntl(region.fd(), F_ADD_SEALS, seals) != 0) return errnoStatus(errno, what + ": sealing");
  return region;
}

StatusOr<ShmRegion> ShmRegion::map(UniqueFd fd, size_t bytes_min, Access access) {
  const int seals = ::fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0) return errnoStatus(errno, "descriptor is no memfd: reading its seals");
  if ((seals & kSeals) != kSeals)
    return absl::InvalidArgumentError("shared memory is not sealed: its peer could shrink it");
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return errnoStatus(errno, "shared memory: fstat");
  const auto bytes = static_cast<size_t>(info.st_size);
  if (bytes == 0 || bytes < bytes_min) {
    return absl::InvalidArgumentError("shared memory has " + std::to_string(bytes) + " bytes, at least " +
                                      std::to_string(bytes_min) + " are needed");
  }
  return mapWhole(std::move(fd), bytes, access);
}

StatusOr<ShmRegion> ShmRegion::mapWhole(UniqueFd fd, size_t bytes, Access access) {
  const int protection = PROT_READ | (access == Access::kReadWrite ? PROT_WRITE : 0);
  // Populated now, so that no page fault is left for the copies.
  void* data = ::mmap(nullptr, bytes, protection, MAP_SHARED | MAP_POPULATE, fd.get(), 0);
  if (data == MAP_FAILED) return errnoStatus(errno, "shared memory of " + std::to_string(bytes) + " bytes: mmap");
  return ShmRegion(std::move(fd), static_cast<std::byte*>(data), bytes);
}

StatusOr<UniqueFd> duplicateFd(int fd) {
  UniqueFd copy(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (!copy.valid()) return errnoStatus(errno, "duplicating descriptor " + std::to_string(fd));
  return copy;
}

}  // namespace latentd
