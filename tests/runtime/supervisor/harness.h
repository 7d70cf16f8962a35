#pragma once

#include <poll.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/base/child_spawner.h"
#include "runtime/base/event_loop.h"
#include "runtime/base/mutex.h"
#include "runtime/metrics/registry.h"
#include "runtime/supervisor/supervisor.h"
#include "tests/runtime/supervisor/fakes.h"
#include "tests/support/catch.h"
#include "tests/support/temp_dir.h"

namespace latentd::supervisor {

// Results that are complete when the last stage says so.
class InstantOutputs final : public media::OutputFactory {
 public:
  StatusOr<std::unique_ptr<media::Output>> open(const JobId& job, const v1::JobParameters& parameters, Opened opened,
                                                Done done) override {
    ++open_count;
    media_.loop().post([opened = std::move(opened)] { opened(absl::OkStatus()); });
    return std::unique_ptr<media::Output>(
        std::make_unique<Handle>(*this, "/tmp/" + job, parameters.frames(), std::move(done)));
  }
  void remove(const JobId&) override {}
  std::atomic<int> open_count{0};

 private:
  class Handle final : public media::Output {
   public:
    Handle(InstantOutputs& owner, std::string path, uint32_t frames, Done done)
        : owner_(owner), path_(std::move(path)), frames_(frames), done_(std::move(done)) {}
    ~Handle() override {
      owner_.media_.loop().runAndWait([] {});  // nothing is told after this
      --owner_.open_count;
    }
    int ringFd() const override { return STDIN_FILENO; }
    uint64_t ringId() const override { return 1; }
    void finish() override { end(media::OutputResult{path_, 1, frames_}); }
    void abort(const Status& reason) override { end(reason); }

   private:
    void end(StatusOr<media::OutputResult> result) {
      if (done_) std::exchange(done_, nullptr)(std::move(result));
    }

    InstantOutputs& owner_;
    std::string path_;
    uint32_t frames_;
    Done done_;
  };

  SteadyClock clock_;
  LoopThread media_{clock_, "media"};
};

// A whole supervisor with fake workers: real processes, real streams, real time.
class Harness {
 public:
  static constexpr std::chrono::seconds kPatience{60};

  // worker_binary: tests/support:fake_worker. script: see there.
  Harness(config::Topology topology, std::string worker_binary, const std::string& script = "")
      : topology_(std::move(topology)) {
    // Fake workers run "run" everywhere but at the end.
    for (const size_t group : topology_.stages.back().groups)
      topology_.groups[group].method = "show";
    std::ofstream(folder_.file("script")) << script;
    spawner_.emplace(std::vector<std::string>{"FAKE_WORKER_SCRIPT=" + folder_.file("script")});
    auto dir = RuntimeDir::create(folder_.path());
    REQUIRE(dir.ok());
    runtime_dir_.emplace(std::move(*dir));
    supervisor_.emplace(Supervisor::Deps{.topology = topology_,
                                         .clock = clock_,
                                         .loop = loop_,
                                         .spawner = *spawner_,
                                         .outputs = outputs_,
                                         .registry = registry_,
                                         .runtime_dir = *runtime_dir_,
                                         .worker_binary = std::move(worker_binary),
                                         .random = [this] { return random_(); },
                                         .on_ready = [this] { ready_ = true; },
                                         .place_of =
                                             [](const config::GroupSpec&, Rank rank) {
                                               return std::vector<std::pair<std::string, uint32_t>>{{"tp", rank.value}};
                                             }});
    start_status_ = supervisor_->start();
    thread_ = std::thread([this] {
      loop_.run();
      const MutexLock held(mutex_);
      ended_ = true;
      changed_.notifyAll();
    });
  }
  ~Harness() {
    loop_.stop();
    thread_.join();
    supervisor_.reset();
    runtime_dir_.reset();
    spawner_.reset();
  }

  JobService& service() { return *supervisor_; }
  config::Topology& topology() { return topology_; }
  InstantOutputs& outputs() { return outputs_; }
  metrics::Registry& registry() { return registry_; }
  const Status& startStatus() const { return start_status_; }
  const std::string& folder() const { return folder_.path(); }

  // Polls, because the other side is a process.
  static bool waitUntil(const std::function<bool()>& condition, std::chrono::milliseconds limit = kPatience) {
    const auto deadline = std::chrono::steady_clock::now() + limit;
    while (!condition()) {
      if (std::chrono::steady_clock::now() > deadline) return false;
      poll(nullptr, 0, 2);
    }
    return true;
  }
  bool waitReady() {
    return waitUntil([this] { return (ready_ && service().ready().ok()) || hasEnded(); }) && !hasEnded();
  }
  bool hasEnded() {
    const MutexLock held(mutex_);
    return ended_;
  }
  // Why the daemon ended, once it has.
  Status waitEnd(std::chrono::milliseconds limit = kPatience) {
    const auto deadline = std::chrono::steady_clock::now() + limit;
    const MutexLock held(mutex_);
    while (!ended_) {
      if (!changed_.waitUntil(mutex_, deadline)) return absl::DeadlineExceededError("the daemon does not end");
    }
    return supervisor_->outcome();
  }
  // As if the process were stopped: its other threads go on, which changes nothing for the loop.
  void holdUp(std::chrono::milliseconds duration) {
    loop_.post([duration] { poll(nullptr, 0, static_cast<int>(duration.count())); });
  }
  void interrupt() {
    loop_.post([this] { supervisor_->interrupt(); });
  }

  // steps: 0 takes the default.
  JobId submit(uint32_t retries = 0, uint32_t steps = 0) {
    v1::SubmitRequest request;
    request.mutable_parameters()->set_prompt("a red ball");
    if (steps != 0) request.mutable_parameters()->set_steps(steps);
    request.set_retries(retries);
    const auto job = service().submit(request);
    INFO(job.status());
    REQUIRE(job.ok());
    return job->id();
  }
  // The job in its last state.
  v1::Job waitJob(const JobId& id) {
    v1::Job job;
    const bool ended = waitUntil([&] {
      const auto now = service().get(id);
      if (now.ok()) job = *now;
      return !now.ok() || isTerminal(job.state());
    });
    CHECK(ended);
    return job;
  }
  pid_t pidOf(uint32_t group, uint32_t rank = 0) {
    return service().topology().groups(static_cast<int>(group)).workers(static_cast<int>(rank)).pid();
  }
  // Of the workers that live.
  std::vector<UniqueFd> pidFds() {
    std::vector<UniqueFd> fds;
    const v1::Topology topology = service().topology();
    for (const v1::Group& group : topology.groups()) {
      for (const v1::Worker& worker : group.workers()) {
        if (worker.pid() <= 0) continue;
        UniqueFd fd(static_cast<int>(syscall(SYS_pidfd_open, worker.pid(), 0)));
        // One that dies at its start may have been reaped since it was asked for.
        REQUIRE((fd.valid() || errno == ESRCH));
        if (fd.valid()) fds.push_back(std::move(fd));
      }
    }
    return fds;
  }

 private:
  const SteadyClock clock_;
  config::Topology topology_;
  const testing::TempDir folder_;
  std::mt19937_64 random_{std::random_device()()};
  metrics::Registry registry_;
  InstantOutputs outputs_;
  std::optional<ChildSpawner> spawner_;
  std::optional<RuntimeDir> runtime_dir_;
  EventLoop loop_{clock_};
  std::atomic<bool> ready_{false};
  std::optional<Supervisor> supervisor_;
  Status start_status_;
  Mutex mutex_;
  CondVar changed_;
  bool ended_ GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace latentd::supervisor
