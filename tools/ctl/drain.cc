#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <optional>
#include <string>
#include <utility>

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

// Says what the daemon waits for, until it is gone.
ExitCode waitForEnd(const Client& client, const DrainOptions& options) {
  const auto start = std::chrono::system_clock::now();
  v1::ListJobsRequest unfinished;
  for (const v1::JobState state : {v1::JOB_STATE_QUEUED, v1::JOB_STATE_RUNNING, v1::JOB_STATE_CANCELLING})
    unfinished.add_states(state);
  unfinished.set_page_size(kJobsNamed);
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
  const ExitCode code = waitForEnd(client, options);
  if (code == ExitCode::kOk && !global.json) std::printf("the daemon at %s has ended\n", global.endpoint.c_str());
  return code;
}

}  // namespace latentd::ctl
