#include "runtime/base/shm_region.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <utility>

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

StatusOr<ShmRegion> ShmRegion::create(const std::string& name, size_t bytes) {
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
  if (::fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0) return errnoStatus(errno, what + ": sealing");
  return map(std::move(fd), bytes);
}

StatusOr<ShmRegion> ShmRegion::map(UniqueFd fd, size_t bytes_min) {
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
  void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (data == MAP_FAILED) return errnoStatus(errno, "shared memory of " + std::to_string(bytes) + " bytes: mmap");
  return ShmRegion(std::move(fd), static_cast<std::byte*>(data), bytes);
}

StatusOr<UniqueFd> duplicateFd(int fd) {
  UniqueFd copy(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (!copy.valid()) return errnoStatus(errno, "duplicating descriptor " + std::to_string(fd));
  return copy;
}

}  // namespace latentd
