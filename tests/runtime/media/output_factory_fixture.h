#pragma once

#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/base/mutex.h"
#include "runtime/base/shm_region.h"
#include "runtime/media/output_factory.h"
#include "tests/runtime/media/temp_dir.h"
#include "tests/runtime/media/test_video.h"
#include "tests/support/catch.h"
#include "tests/support/self_path.h"

namespace latentd::media {

using std::chrono::milliseconds;

// Far above what anything here takes, so that only a hang reaches it.
inline constexpr std::chrono::seconds kTestDeadline{60};
inline constexpr uint32_t kTestWidth = 64;
inline constexpr uint32_t kTestHeight = 48;

inline Clock::TimePoint testDeadline() { return std::chrono::steady_clock::now() + kTestDeadline; }

// Polls what has no event to wait for: the end of processes, files that go.
inline bool eventually(const std::function<bool()>& holds) {
  const Clock::TimePoint deadline = testDeadline();
  while (!holds()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(milliseconds(5));
  }
  return true;
}

// The calls of `opened` and `done`, one each at most; a failure of either.
class DoneProbe {
 public:
  OutputFactory::Opened opened() {
    return [this](const Status& status) {
      const MutexLock lock(mutex_);
      CHECK((!opened_ && results_.empty()));
      opened_ = status.ok();
      if (!status.ok()) results_.push_back(status);
      changed_.notifyAll();
    };
  }
  OutputFactory::Done done() {
    return [this](StatusOr<OutputResult> result) {
      const MutexLock lock(mutex_);
      results_.push_back(std::move(result));
      changed_.notifyAll();
    };
  }
  // For the ring, or for the failure to make it.
  bool waitOpened() {
    const MutexLock lock(mutex_);
    const Clock::TimePoint deadline = testDeadline();
    while (!opened_ && results_.empty()) {
      if (!changed_.waitUntil(mutex_, deadline)) return false;
    }
    return opened_;
  }
  StatusOr<OutputResult> wait() {
    const MutexLock lock(mutex_);
    const Clock::TimePoint deadline = testDeadline();
    while (results_.empty()) {
      if (!changed_.waitUntil(mutex_, deadline)) return absl::DeadlineExceededError("done was not called");
    }
    return results_.front();
  }
  size_t calls() {
    const MutexLock lock(mutex_);
    return results_.size();
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  bool opened_ GUARDED_BY(mutex_) = false;
  std::vector<StatusOr<OutputResult>> results_ GUARDED_BY(mutex_);
};

// Processes that this one started and has not reaped.
inline std::vector<pid_t> childPids() {
  std::vector<pid_t> pids;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream children(task.path() / "children");
    for (pid_t pid; children >> pid;)
      pids.push_back(pid);
  }
  return pids;
}

inline size_t entriesOf(const char* dir) {
  const std::filesystem::directory_iterator entries(dir);
  return static_cast<size_t>(std::distance(begin(entries), end(entries)));
}
inline size_t openFds() { return entriesOf("/proc/self/fd"); }
inline size_t threadCount() { return entriesOf("/proc/self/task"); }

inline v1::JobParameters testParameters(v1::OutputFormat format, uint32_t frames = 8) {
  v1::JobParameters parameters;
  parameters.set_format(format);
  parameters.set_width(kTestWidth);
  parameters.set_height(kTestHeight);
  parameters.set_frames(frames);
  parameters.set_fps(8);
  return parameters;
}

// Frames first .. first+count-1 of the test video, as a worker writes them.
inline Status writeFrames(FrameRingWriter& writer, uint32_t first, uint32_t count,
                          Clock::TimePoint deadline = testDeadline()) {
  for (uint32_t n = first; n < first + count; ++n) {
    LATENTD_ASSIGN_OR_RETURN(const std::span<std::byte> frame, writer.reserve(deadline));
    const std::vector<std::byte> pixels = testFrame(writer.geometry().width, writer.geometry().height, n);
    std::copy(pixels.begin(), pixels.end(), frame.begin());
    writer.commit();
  }
  return {};
}

// Its ring is there, or `done` was called.
inline StatusOr<std::unique_ptr<Output>> openOutput(OutputFactory& factory, const JobId& job,
                                                    const v1::JobParameters& parameters, DoneProbe& probe) {
  LATENTD_ASSIGN_OR_RETURN(std::unique_ptr<Output> output, factory.open(job, parameters, probe.opened(), probe.done()));
  probe.waitOpened();
  return output;
}

inline FrameRingWriter attachWriter(const Output& output) {
  auto writer = FrameRingWriter::attach(ShmRegion::map(*duplicateFd(output.ringFd()), 1).value());
  REQUIRE(writer.ok());
  return *std::move(writer);
}

struct FactoryFixture {
  TempDir dir;
  std::string spool_dir = dir.file("spool");
  SteadyClock clock;
  ChildSpawner spawner{{"PATH=/usr/bin:/bin"}};
  SpoolOutputFactory::Options options{{spool_dir, uint64_t{64} << 20, std::chrono::hours(1)},
                                      latentd::testing::builtBinary("tools/latent-encoder"),
                                      std::chrono::minutes(1)};
  std::unique_ptr<SpoolOutputFactory> factory;

  SpoolOutputFactory& start() {
    auto created = SpoolOutputFactory::create(options, spawner, clock);
    INFO(messageOf(created.status()));
    REQUIRE(created.ok());
    factory = *std::move(created);
    return *factory;
  }

  // The process of the one output that runs; the probe has ended by then.
  pid_t encoderPid() {
    REQUIRE(eventually([] { return childPids().size() == 1; }));
    return childPids().front();
  }

  bool nothingLeft() {
    return eventually([&] { return childPids().empty() && factory->running() == 0 && namesIn(spool_dir).empty(); });
  }

  // A program that stands in for the encoder; a script answers the probe with success.
  void useScript(const std::string& body) {
    options.encoder = dir.file("encoder");
    {
      std::ofstream script(options.encoder);
      script << "#!/bin/sh\n[ \"$1\" = --check ] && exit 0\n" << body << "\n";
    }
    std::filesystem::permissions(options.encoder, std::filesystem::perms::owner_all);
  }
};

}  // namespace latentd::media
