#include "tools/ctl/output_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <utility>

namespace latentd::ctl {
namespace {

namespace fs = std::filesystem;

Status openError(const std::string& path) {
  return annotate(errnoStatus(errno, path), "cannot write the output; choose another file with -o");
}

}  // namespace

OutputFile::OutputFile(std::string path, std::string target, std::string partial, UniqueFd fd)
    : path_(std::move(path)), target_(std::move(target)), partial_(std::move(partial)), fd_(std::move(fd)) {}

Status OutputFile::checkName(const std::string& path) {
  std::error_code error;
  if (!path.ends_with('/') && !fs::is_directory(path, error)) return absl::OkStatus();
  return absl::InvalidArgumentError("-o " + path + ": is a folder; give a file name, such as " +
                                    (fs::path(path) / "video.mp4").string());
}

StatusOr<OutputFile> OutputFile::open(const std::string& path) {
  if (path == "-") {
    if (isatty(STDOUT_FILENO) != 0) {
      return absl::InvalidArgumentError("-o -: standard output is a terminal; pipe it, or give a file name");
    }
    UniqueFd copy(fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 0));
    if (!copy.valid()) return openError("standard output");
    return OutputFile(path, path, "", std::move(copy));
  }
  LATENTD_RETURN_IF_ERROR(checkName(path));
  struct stat info {};
  const bool exists = ::stat(path.c_str(), &info) == 0;
  if (exists && !S_ISREG(info.st_mode)) {
    UniqueFd direct(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
    if (!direct.valid()) return openError(path);
    return OutputFile(path, path, "", std::move(direct));
  }
  std::error_code error;
  const fs::path folder = fs::path(path).parent_path();
  if (!exists && !folder.empty() && !fs::exists(folder, error)) {
    return absl::NotFoundError("-o " + path + ": there is no folder " + folder.string() +
                               "; make it (mkdir -p), or choose another file");
  }
  const fs::path target = exists ? fs::canonical(path, error) : fs::path(path);
  const std::string partial =
      (target.parent_path() / ("." + target.filename().string() + "." + std::to_string(getpid()) + ".part")).string();
  UniqueFd fd(::open(partial.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0666));
  if (!fd.valid()) return openError(path);
  return OutputFile(path, target.string(), partial, std::move(fd));
}

OutputFile::~OutputFile() {
  if (fd_.valid() && !partial_.empty()) ::unlink(partial_.c_str());
}

Status OutputFile::write(std::string_view data) {
  while (!data.empty()) {
    const ssize_t written = ::write(fd_.get(), data.data(), data.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && errno == EPIPE) return absl::AbortedError("nobody reads " + path_ + " any more");
    if (written < 0) return errnoStatus(errno, "writing " + (isStdout() ? "standard output" : path_));
    data.remove_prefix(static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

Status OutputFile::commit() {
  // Some file systems report a full disk only now.
  const bool closed = ::close(fd_.release()) == 0;
  if (partial_.empty()) return closed ? absl::OkStatus() : errnoStatus(errno, "closing " + path_);
  if (closed && ::rename(partial_.c_str(), target_.c_str()) == 0) return absl::OkStatus();
  const Status failed = errnoStatus(errno, "completing " + target_);
  ::unlink(partial_.c_str());
  return failed;
}

}  // namespace latentd::ctl
