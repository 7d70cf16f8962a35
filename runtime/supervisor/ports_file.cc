#include "runtime/supervisor/ports_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <utility>

#include "runtime/base/unique_fd.h"

namespace latentd::supervisor {
namespace {

constexpr mode_t kMode = 0644;

StatusOr<UniqueFd> openForWriting(const std::string& path) {
  UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, kMode));
  if (!file.valid()) return errnoStatus(errno, "write " + path);
  return file;
}

}  // namespace

StatusOr<PortsFile> PortsFile::create(const std::string& path) {
  PortsFile file(path);
  if (path.empty()) return file;
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) return errnoStatus(errno, "remove the former " + path);
  LATENTD_RETURN_IF_ERROR(openForWriting(file.partial()).status());
  return file;
}

PortsFile::PortsFile(PortsFile&& other) noexcept : path_(std::exchange(other.path_, {})) {}

PortsFile::~PortsFile() {
  if (path_.empty()) return;
  ::unlink(partial().c_str());
  ::unlink(path_.c_str());
}

Status PortsFile::publish(const std::string& grpc, const std::string& http) {
  if (path_.empty()) return absl::OkStatus();
  LATENTD_ASSIGN_OR_RETURN(const UniqueFd file, openForWriting(partial()));
  const std::string text = "grpc=" + grpc + "\nhttp=" + http + "\n";
  errno = ENOSPC;  // of a write that is cut short
  if (::write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()) ||
      ::rename(partial().c_str(), path_.c_str()) != 0) {
    return errnoStatus(errno, "write " + path_);
  }
  return absl::OkStatus();
}

}  // namespace latentd::supervisor
