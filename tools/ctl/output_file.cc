#include "tools/ctl/output_file.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <string_view>
#include <utility>

namespace latentd::ctl {
namespace {

namespace fs = std::filesystem;

constexpr const char* kOwnDescriptors = "/proc/self/fd";

constexpr std::string_view kPartialEnd = ".part";

// What comes before the number of the process.
std::string partialBegin(const fs::path& target) { return "." + target.filename().string() + "."; }

fs::path partialName(const fs::path& target, pid_t pid) {
  return target.parent_path() / (partialBegin(target) + std::to_string(pid) + std::string(kPartialEnd));
}

// Whose process is gone, and which nobody holds on another host of a shared folder either.
bool isAbandoned(const fs::path& partial, pid_t pid) {
  if (::kill(pid, 0) == 0 || errno != ESRCH) return false;
  const UniqueFd fd(::open(partial.c_str(), O_WRONLY | O_NOFOLLOW | O_CLOEXEC));
  return fd.valid() && ::flock(fd.get(), LOCK_EX | LOCK_NB) == 0;
}

// What killed processes left of the same target. A failure is nobody's: the file is a nuisance, and no more.
void removeAbandoned(const fs::path& target) {
  const std::string begin = partialBegin(target);
  std::error_code error;
  const fs::path folder = target.parent_path().empty() ? "." : target.parent_path();
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(begin) || !name.ends_with(kPartialEnd)) continue;
    if (name.size() < begin.size() + kPartialEnd.size()) continue;
    const std::string digits = name.substr(begin.size(), name.size() - begin.size() - kPartialEnd.size());
    pid_t pid = 0;
    const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), pid);
    const bool is_pid = parsed.ec == std::errc() && parsed.ptr == digits.data() + digits.size() && pid > 0;
    if (is_pid && isAbandoned(entry.path(), pid)) ::unlink(entry.path().c_str());
  }
}

Status openError(const std::string& path) {
  return annotate(errnoStatus(errno, path), "cannot write the output; choose another file with -o");
}

}  // namespace

OutputFile::OutputFile(std::string path, std::string target, std::string partial, UniqueFd fd, bool named)
    : path_(std::move(path)),
      target_(std::move(target)),
      partial_(std::move(partial)),
      fd_(std::move(fd)),
      named_(named) {}

Status OutputFile::checkName(const std::string& path) {
  std::error_code error;
  if (!path.ends_with('/') && !fs::is_directory(path, error)) return absl::OkStatus();
  return absl::InvalidArgumentError("-o " + path + ": is a folder; give a file name, such as " +
                                    (fs::path(path) / "video.mp4").string());
}

StatusOr<OutputFile> OutputFile::open(const std::string& path, Unfinished unfinished) {
  if (path == "-") {
    if (isatty(STDOUT_FILENO) != 0) {
      return absl::InvalidArgumentError("-o -: standard output is a terminal; pipe it, or give a file name");
    }
    UniqueFd copy(fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 0));
    if (!copy.valid()) return openError("standard output");
    return OutputFile(path, path, "", std::move(copy), false);
  }
  LATENTD_RETURN_IF_ERROR(checkName(path));
  struct stat info {};
  const bool exists = ::stat(path.c_str(), &info) == 0;
  if (exists && !S_ISREG(info.st_mode)) {
    UniqueFd direct(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
    if (!direct.valid()) return openError(path);
    return OutputFile(path, path, "", std::move(direct), false);
  }
  std::error_code error;
  const fs::path folder = fs::path(path).parent_path();
  if (!exists && !folder.empty() && !fs::exists(folder, error)) {
    return absl::NotFoundError("-o " + path + ": there is no folder " + folder.string() +
                               "; make it (mkdir -p), or choose another file");
  }
  const fs::path target = exists ? fs::canonical(path, error) : fs::path(path);
  removeAbandoned(target);
  OutputFile output(path, target.string(), partialName(target, getpid()).string(), UniqueFd(), false);
  LATENTD_RETURN_IF_ERROR(output.openPartial(unfinished));
  return output;
}

Status OutputFile::openPartial(Unfinished unfinished) {
  const fs::path folder = fs::path(partial_).parent_path();
  const bool can_be_named_later = access(kOwnDescriptors, X_OK) == 0;
  if (unfinished == Unfinished::kUnnamed && can_be_named_later) {
    fd_.reset(::open(folder.empty() ? "." : folder.c_str(), O_WRONLY | O_TMPFILE | O_CLOEXEC, 0666));
    if (fd_.valid()) return absl::OkStatus();
  }
  fd_.reset(::open(partial_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0666));
  if (!fd_.valid()) return openError(path_);
  named_ = true;
  // Tells a process on another host, which cannot see ours, that it is being written. Where that is impossible, so is
  // its removal.
  ::flock(fd_.get(), LOCK_EX | LOCK_NB);
  return absl::OkStatus();
}

OutputFile::~OutputFile() {
  if (fd_.valid() && named_) ::unlink(partial_.c_str());
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
  if (!partial_.empty() && !named_) {
    ::unlink(partial_.c_str());  // of an earlier process with our number
    const std::string unnamed = std::string(kOwnDescriptors) + "/" + std::to_string(fd_.get());
    if (::linkat(AT_FDCWD, unnamed.c_str(), AT_FDCWD, partial_.c_str(), AT_SYMLINK_FOLLOW) != 0) {
      return failCommit(errno);
    }
    named_ = true;
  }
  // Some file systems report a full disk only now.
  const bool closed = ::close(fd_.release()) == 0;
  if (partial_.empty()) return closed ? absl::OkStatus() : errnoStatus(errno, "closing " + path_);
  // Not linked to the target at once: that must not exist, and a rename replaces it whole.
  if (closed && ::rename(partial_.c_str(), target_.c_str()) == 0) return absl::OkStatus();
  return failCommit(errno);
}

Status OutputFile::failCommit(int error) {
  if (named_) ::unlink(partial_.c_str());
  named_ = false;
  return errnoStatus(error, "completing " + target_);
}

}  // namespace latentd::ctl
