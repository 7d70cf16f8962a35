#include "runtime/supervisor/ports_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

namespace latentd::supervisor {
namespace {

constexpr mode_t kMode = 0644;

std::string partial(const std::string& path) { return path + ".partial"; }

// The lock is the open file's: it goes with the process, and moves with the file's name.
Status lock(const UniqueFd& file, const std::string& path) {
  if (::flock(file.get(), LOCK_EX | LOCK_NB) == 0) return absl::OkStatus();
  if (errno != EWOULDBLOCK) return errnoStatus(errno, "lock " + path);
  return absl::FailedPreconditionError("the ports file " + path +
                                       " is that of another daemon, which runs: give this one another");
}

}  // namespace

StatusOr<PortsFile> PortsFile::create(const std::string& path) {
  if (path.empty()) return PortsFile("", UniqueFd());
  const UniqueFd former(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (former.valid()) LATENTD_RETURN_IF_ERROR(lock(former, path));
  UniqueFd file(::open(partial(path).c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, kMode));
  if (!file.valid()) return errnoStatus(errno, "write " + path);
  LATENTD_RETURN_IF_ERROR(lock(file, path));
  if (::ftruncate(file.get(), 0) != 0) return errnoStatus(errno, "write " + path);
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) {
    const Status failed = errnoStatus(errno, "remove the former " + path);
    ::unlink(partial(path).c_str());
    return failed;
  }
  return PortsFile(path, std::move(file));
}

PortsFile::~PortsFile() {
  if (!file_.valid()) return;
  ::unlink(partial(path_).c_str());
  ::unlink(path_.c_str());
}

Status PortsFile::publish(const std::string& grpc, const std::string& http) {
  if (!file_.valid()) return absl::OkStatus();
  const std::string text = "grpc=" + grpc + "\nhttp=" + http + "\n";
  errno = ENOSPC;  // of a write that is cut short
  if (::write(file_.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()) ||
      ::rename(partial(path_).c_str(), path_.c_str()) != 0) {
    return errnoStatus(errno, "write " + path_);
  }
  return absl::OkStatus();
}

}  // namespace latentd::supervisor
