#pragma once

#include <chrono>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/base/clock.h"
#include "runtime/base/mutex.h"
#include "runtime/base/status.h"
#include "runtime/base/strong_id.h"
#include "runtime/base/unique_fd.h"

namespace latentd::media {

struct SpoolOptions {
  std::string dir;
  uint64_t bytes_max = 0;
  std::chrono::milliseconds retention{};
};

class Spool;

// A result while it is written: "NAME.partial" in the spool, removed at destruction unless committed. Move only.
// Owner: the output. Thread: one.
class SpoolFile {
 public:
  SpoolFile(SpoolFile&& other) noexcept;
  SpoolFile& operator=(SpoolFile&&) = delete;
  ~SpoolFile();

  int fd() const { return fd_.get(); }
  // Where the file will be.
  const std::string& path() const { return path_; }

 private:
  friend class Spool;
  SpoolFile(Spool& spool, UniqueFd fd, JobId job, std::string path, uint64_t reserved_bytes);

  Spool* spool_;  // null once committed or moved from; outlives this
  UniqueFd fd_;
  JobId job_;
  std::string path_;
  uint64_t reserved_bytes_;
};

// The folder of results. Bounded in bytes: the oldest finished results make room for new ones; and in time: a result
// goes `retention` after it was finished.
// Owner: the output factory. Thread: any. Failure: RESOURCE_EXHAUSTED when there is no room or the disk is full.
class Spool {
 public:
  // Makes the folder (0700) if it is not there, and removes what an earlier daemon left in it: nobody knows those jobs
  // any more. FAILED_PRECONDITION if a living daemon uses it.
  static StatusOr<std::unique_ptr<Spool>> open(SpoolOptions options, const Clock& clock);

  // `bytes` is kept free for the file; 0 if its size is not known. INVALID_ARGUMENT for ids that are no file names.
  StatusOr<SpoolFile> create(const JobId& job, std::string_view extension, uint64_t bytes);
  // The result is complete: it gets its name and counts from now on. Returns its size.
  StatusOr<uint64_t> commit(SpoolFile file);
  // Not an error if it is already gone.
  void remove(const JobId& job);
  // Removes what is past its time; when the next result will be.
  std::optional<Clock::TimePoint> expire();

  // Of finished results.
  uint64_t bytes() const;
  uint64_t bytesMax() const { return options_.bytes_max; }

 private:
  friend class SpoolFile;
  struct Result {
    JobId job;
    std::string path;
    uint64_t bytes;
    Clock::TimePoint expires;
  };

  Spool(SpoolOptions options, const Clock& clock, UniqueFd lock)
      : options_(std::move(options)), clock_(clock), lock_(std::move(lock)) {}
  Status makeRoom(uint64_t bytes) REQUIRES(mutex_);
  void drop(std::list<Result>::iterator result) REQUIRES(mutex_);
  void expireHere() REQUIRES(mutex_);
  void release(uint64_t reserved_bytes);

  const SpoolOptions options_;
  const Clock& clock_;
  const UniqueFd lock_;  // held as long as the folder is ours
  mutable Mutex mutex_;
  std::list<Result> results_ GUARDED_BY(mutex_);  // oldest first
  uint64_t finished_bytes_ GUARDED_BY(mutex_) = 0;
  uint64_t reserved_bytes_ GUARDED_BY(mutex_) = 0;  // of files being written
};

}  // namespace latentd::media
