#include "runtime/media/spool.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <utility>

#include "runtime/base/log.h"

namespace latentd::media {
namespace {

// Every file of ours begins with it, so that a sweep touches nothing else.
constexpr std::string_view kFilePrefix = "latentd-";
constexpr std::string_view kPartialSuffix = ".partial";
constexpr std::string_view kLockName = ".latentd.lock";
// Ids become file names of at most 255 bytes, with prefix and suffixes.
constexpr size_t kJobBytesMax = 128;

bool isFileName(std::string_view job) {
  const auto is_plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
  };
  return !job.empty() && job.size() <= kJobBytesMax && std::all_of(job.begin(), job.end(), is_plain);
}

std::string partialOf(const std::string& path) { return path + std::string(kPartialSuffix); }

void unlinkQuietly(const std::string& path) {
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) {
    getLogger("spool")->error("{} stays: {}", path, messageOf(errnoStatus(errno, "unlink")));
  }
}

StatusOr<UniqueFd> lockFolder(const std::string& dir) {
  const std::string path = dir + "/" + std::string(kLockName);
  UniqueFd lock(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!lock.valid()) return errnoStatus(errno, "spool: open " + path);
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) == 0) return lock;
  if (errno != EWOULDBLOCK) return errnoStatus(errno, "spool: lock " + path);
  return absl::FailedPreconditionError("spool: another latentd uses " + dir +
                                       "; give each daemon a spool.dir of its own");
}

// Only with the folder's lock held.
Status sweep(const std::string& dir) {
  std::error_code error;
  std::filesystem::directory_iterator entry(dir, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    if (entry->path().filename().string().starts_with(kFilePrefix)) unlinkQuietly(entry->path().string());
  }
  return error ? errnoStatus(error.value(), "spool: read " + dir) : absl::OkStatus();
}

}  // namespace

SpoolFile::SpoolFile(Spool& spool, UniqueFd fd, JobId job, std::string path, uint64_t reserved_bytes)
    : spool_(&spool),
      fd_(std::move(fd)),
      job_(std::move(job)),
      path_(std::move(path)),
      reserved_bytes_(reserved_bytes) {}

SpoolFile::SpoolFile(SpoolFile&& other) noexcept
    : spool_(std::exchange(other.spool_, nullptr)),
      fd_(std::move(other.fd_)),
      job_(std::move(other.job_)),
      path_(std::move(other.path_)),
      reserved_bytes_(other.reserved_bytes_) {}

SpoolFile::~SpoolFile() {
  if (spool_ == nullptr) return;
  unlinkQuietly(partialOf(path_));
  spool_->release(reserved_bytes_);
}

StatusOr<std::unique_ptr<Spool>> Spool::open(SpoolOptions options, const Clock& clock) {
  if (::mkdir(options.dir.c_str(), 0700) != 0 && errno != EEXIST) {
    return errnoStatus(errno, "spool: make folder " + options.dir);
  }
  LATENTD_ASSIGN_OR_RETURN(UniqueFd lock, lockFolder(options.dir));
  LATENTD_RETURN_IF_ERROR(sweep(options.dir));
  return std::unique_ptr<Spool>(new Spool(std::move(options), clock, std::move(lock)));
}

StatusOr<SpoolFile> Spool::create(const JobId& job, std::string_view extension, uint64_t bytes) {
  if (!isFileName(job)) {
    return absl::InvalidArgumentError("job id of " + std::to_string(job.size()) +
                                      " bytes is no file name; use letters, digits, '-' and '_'");
  }
  const std::string path = options_.dir + "/" + std::string(kFilePrefix) + job + "." + std::string(extension);
  {
    const MutexLock lock(mutex_);
    LATENTD_RETURN_IF_ERROR(makeRoom(bytes));
    reserved_bytes_ += bytes;
  }
  UniqueFd fd(::open(partialOf(path).c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd.valid()) {
    const int error = errno;
    release(bytes);
    return errnoStatus(error, "spool: create " + partialOf(path));
  }
  return SpoolFile(*this, std::move(fd), job, path, bytes);
}

StatusOr<uint64_t> Spool::commit(SpoolFile file) {
  struct stat info {};
  if (::fstat(file.fd(), &info) != 0) return errnoStatus(errno, "spool: size of " + file.path());
  const auto bytes = static_cast<uint64_t>(info.st_size);
  const MutexLock lock(mutex_);
  // From here on it counts with its true size. On failure the file's destructor gives back nothing more.
  reserved_bytes_ -= std::exchange(file.reserved_bytes_, 0);
  LATENTD_RETURN_IF_ERROR(makeRoom(bytes));
  if (::rename(partialOf(file.path()).c_str(), file.path().c_str()) != 0) {
    return errnoStatus(errno, "spool: name " + file.path());
  }
  file.spool_ = nullptr;
  results_.push_back({file.job_, file.path_, bytes, clock_.now() + options_.retention});
  finished_bytes_ += bytes;
  return bytes;
}

Status Spool::makeRoom(uint64_t bytes) {
  expireHere();
  if (bytes > options_.bytes_max) {
    return absl::ResourceExhaustedError("spool: a result of " + std::to_string(bytes) +
                                        " bytes is above spool.bytes_max (" + std::to_string(options_.bytes_max) +
                                        "); ask for fewer or smaller frames");
  }
  while (!results_.empty() && finished_bytes_ + reserved_bytes_ + bytes > options_.bytes_max) {
    drop(results_.begin());
  }
  if (finished_bytes_ + reserved_bytes_ + bytes <= options_.bytes_max) return {};
  return absl::ResourceExhaustedError("spool: no room for " + std::to_string(bytes) + " bytes beside " +
                                      std::to_string(reserved_bytes_) + " that running jobs need; spool.bytes_max is " +
                                      std::to_string(options_.bytes_max));
}

void Spool::drop(std::list<Result>::iterator result) {
  unlinkQuietly(result->path);
  finished_bytes_ -= result->bytes;
  results_.erase(result);
}

void Spool::expireHere() {
  const Clock::TimePoint now = clock_.now();
  while (!results_.empty() && results_.front().expires <= now)
    drop(results_.begin());
}

void Spool::remove(const JobId& job) {
  const MutexLock lock(mutex_);
  const auto result =
      std::find_if(results_.begin(), results_.end(), [&](const Result& candidate) { return candidate.job == job; });
  if (result != results_.end()) drop(result);
}

std::optional<Clock::TimePoint> Spool::expire() {
  const MutexLock lock(mutex_);
  expireHere();
  if (results_.empty()) return std::nullopt;
  return results_.front().expires;
}

uint64_t Spool::bytes() const {
  const MutexLock lock(mutex_);
  return finished_bytes_;
}

void Spool::release(uint64_t reserved_bytes) {
  const MutexLock lock(mutex_);
  reserved_bytes_ -= reserved_bytes;
}

}  // namespace latentd::media
