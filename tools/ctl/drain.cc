#include <fmt/format.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/mutex.h"
#include "runtime/config/value.h"
#include "tools/ctl/admin_commands.h"
#include "tools/ctl/job_text.h"
#include "tools/ctl/text.h"

namespace latentd::ctl {
namespace {

// How often a draining daemon is asked what it waits for; its end is seen at once.
constexpr std::chrono::milliseconds kLook{500};
// How often the same jobs are named again, with how far they are.
constexpr std::chrono::seconds kRepeat{10};
// Jobs that a line names; a queue may hold hundreds.
constexpr uint32_t kJobsNamed = 5;
constexpr uint32_t kJobsAPage = 1000;  // the API's most

std::string describeLeft(const v1::ListJobsResponse& left) {
  if (left.jobs().empty())
    return "no job is left: the daemon ends its workers, and results that were not downloaded go with it";
  std::string text = "waiting for ";
  for (const v1::Job& job : left.jobs()) {
    text += fmt::format("{}job {} ({}, {})", text.back() == ' ' ? "" : ", ", job.id(), stateName(job.state()),
                        progressOf(job));
  }
  return text + (left.next_page_token().empty() ? "" : ", and others");
}

// Tells the jobs that are left when they are others than before, and now and then how far they are.
class Teller {
 public:
  void tell(const v1::ListJobsResponse& left, std::chrono::system_clock::time_point now) {
    std::string jobs = left.next_page_token();
    for (const v1::Job& job : left.jobs())
      jobs += job.id() + stateName(job.state());
    if (told_ && jobs == jobs_ && now - *told_ < kRepeat) return;
    std::fprintf(stderr, "%s\n", describeLeft(left).c_str());
    jobs_ = std::move(jobs);
    told_ = now;
  }

 private:
  std::string jobs_;
  std::optional<std::chrono::system_clock::time_point> told_;
};

// The ends of the jobs that are left. A daemon tells each end to whoever watches before it goes, whereas a question may
// come too late.
// Owner: runDrain(). Thread: the command's; streams are gRPC's. Failure: the end of a job whose stream breaks is
// unknown.
class JobEnds {
 public:
  explicit JobEnds(const Client& client) : client_(client) {}
  ~JobEnds() {
    for (const std::unique_ptr<Stream>& stream : streams_)
      stream->cut();
    while (!allEnded(std::chrono::system_clock::now() + kLook)) {
    }
  }

  void follow(const std::string& id) {
    {
      MutexLock held(mutex_);
      ++open_;
    }
    streams_.push_back(std::make_unique<Stream>(*this, client_.jobs(), id));
  }
  // Once the daemon is gone, and with it all streams.
  uint32_t cancelled() {
    allEnded(client_.deadline());
    MutexLock held(mutex_);
    return cancelled_;
  }

 private:
  class Stream final : public grpc::ClientReadReactor<v1::Job> {
   public:
    Stream(JobEnds& ends, v1::Jobs::Stub& jobs, const std::string& id) : ends_(ends) {
      request_.set_id(id);
      jobs.async()->Watch(&context_, &request_, this);
      StartRead(&job_);
      StartCall();
    }
    void cut() { context_.TryCancel(); }
    void OnReadDone(bool ok) override {
      if (!ok) return;
      state_ = job_.state();
      StartRead(&job_);
    }
    void OnDone(const grpc::Status&) override { ends_.ended(state_); }

   private:
    JobEnds& ends_;
    grpc::ClientContext context_;
    v1::WatchJobRequest request_;
    v1::Job job_;
    v1::JobState state_ = v1::JOB_STATE_UNSPECIFIED;
  };

  void ended(v1::JobState state) {
    MutexLock held(mutex_);
    --open_;
    if (state == v1::JOB_STATE_CANCELLED) ++cancelled_;
    changed_.notifyAll();
  }
  bool allEnded(std::chrono::system_clock::time_point deadline) {
    MutexLock held(mutex_);
    while (open_ > 0) {
      if (!changed_.waitUntil(mutex_, deadline)) return open_ == 0;
    }
    return true;
  }

  const Client& client_;
  Mutex mutex_;
  CondVar changed_;
  uint32_t open_ GUARDED_BY(mutex_) = 0;
  uint32_t cancelled_ GUARDED_BY(mutex_) = 0;
  std::vector<std::unique_ptr<Stream>> streams_;  // last: they call this object
};

v1::ListJobsRequest unfinishedJobs(uint32_t page_size) {
  v1::ListJobsRequest request;
  for (const v1::JobState state : {v1::JOB_STATE_QUEUED, v1::JOB_STATE_RUNNING, v1::JOB_STATE_CANCELLING})
    request.add_states(state);
  request.set_page_size(page_size);
  return request;
}

void followUnfinished(const Client& client, JobEnds& ends) {
  v1::ListJobsRequest request = unfinishedJobs(kJobsAPage);
  v1::ListJobsResponse page;
  do {
    // A daemon that had nothing to do may be gone already.
    if (!client.call(client.jobs(), &v1::Jobs::Stub::List, request, &page).ok()) return;
    for (const v1::Job& job : page.jobs())
      ends.follow(job.id());
    request.set_page_token(page.next_page_token());
  } while (!page.next_page_token().empty());
}

// Says what the daemon waits for, until it is gone.
ExitCode waitForEnd(const Client& client, const DrainOptions& options) {
  const auto start = std::chrono::system_clock::now();
  const v1::ListJobsRequest unfinished = unfinishedJobs(kJobsNamed);
  Teller teller;
  for (;;) {
    v1::ListJobsResponse left;
    const grpc::Status status = client.call(client.jobs(), &v1::Jobs::Stub::List, unfinished, &left);
    if (client.isGone(status)) return ExitCode::kOk;
    // A daemon that is there and does not answer for its loop any more is at its end.
    if (!status.ok() && status.error_code() != grpc::StatusCode::UNAVAILABLE) return client.fail(status);
    const auto now = std::chrono::system_clock::now();
    if (status.ok() && !client.options().json) teller.tell(left, now);
    if (options.wait_timeout && now - start >= *options.wait_timeout) {
      return client.fail(ExitCode::kTimedOut, "the daemon at " + client.options().endpoint +
                                                  " still drains after --wait-timeout " +
                                                  config::formatDuration(*options.wait_timeout) +
                                                  ": it goes on; `latentctl list` shows what it waits for");
    }
    const auto next = now + kLook;
    client.waitConnected(options.wait_timeout ? std::min(next, start + *options.wait_timeout) : next);
  }
}

}  // namespace

ExitCode runDrain(const GlobalOptions& global, const DrainOptions& options) {
  const Client client(global);
  v1::DrainRequest request;
  if (options.deadline) *request.mutable_deadline() = toDuration(*options.deadline);
  v1::DrainResponse response;
  const grpc::Status status = client.call(client.admin(), &v1::Admin::Stub::Drain, request, &response);
  if (!status.ok()) return client.fail(status);
  const std::string text =
      global.json ? toJson(response, true)
                  : fmt::format("draining: no new jobs; {} left before the daemon ends\n", response.jobs_left());
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
  if (!options.wait) return ExitCode::kOk;
  JobEnds ends(client);
  followUnfinished(client, ends);
  const ExitCode code = waitForEnd(client, options);
  if (code != ExitCode::kOk) return code;
  const uint32_t cancelled = ends.cancelled();
  if (!global.json) {
    std::printf("the daemon at %s has ended%s\n", global.endpoint.c_str(),
                cancelled == 0 ? "" : fmt::format("; {} of its jobs were cancelled", cancelled).c_str());
  }
  return cancelled == 0 ? ExitCode::kOk : ExitCode::kJobCancelled;
}

}  // namespace latentd::ctl
