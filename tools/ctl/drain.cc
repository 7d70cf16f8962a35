#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>

#include "runtime/config/value.h"
#include "tools/ctl/admin_commands.h"
#include "tools/ctl/job_text.h"
#include "tools/ctl/text.h"

namespace latentd::ctl {
namespace {

// How often a draining daemon is asked what it waits for; its end is seen at once.
constexpr std::chrono::milliseconds kLook{500};
// Jobs that a line names; a queue may hold hundreds.
constexpr uint32_t kJobsNamed = 5;

std::string describeLeft(const v1::ListJobsResponse& left) {
  if (left.jobs().empty()) return "no job is left: the daemon ends its workers";
  std::string text = "waiting for ";
  for (const v1::Job& job : left.jobs()) {
    text += fmt::format("{}job {} ({}, {})", text.back() == ' ' ? "" : ", ", job.id(), stateName(job.state()),
                        progressOf(job));
  }
  return text + (left.next_page_token().empty() ? "" : ", and others");
}

// Says what the daemon waits for, until it is gone.
ExitCode waitForEnd(const Client& client, const DrainOptions& options) {
  const auto start = std::chrono::system_clock::now();
  v1::ListJobsRequest unfinished;
  for (const v1::JobState state : {v1::JOB_STATE_QUEUED, v1::JOB_STATE_RUNNING, v1::JOB_STATE_CANCELLING})
    unfinished.add_states(state);
  unfinished.set_page_size(kJobsNamed);
  std::string said;
  for (;;) {
    v1::ListJobsResponse left;
    const grpc::Status status = client.call(client.jobs(), &v1::Jobs::Stub::List, unfinished, &left);
    if (client.isGone(status)) return ExitCode::kOk;
    // A daemon that is there and does not answer for its loop any more is at its end.
    if (!status.ok() && status.error_code() != grpc::StatusCode::UNAVAILABLE) return client.fail(status);
    if (const std::string text = describeLeft(left); status.ok() && text != said && !client.options().json) {
      std::fprintf(stderr, "%s\n", text.c_str());
      said = text;
    }
    const auto now = std::chrono::system_clock::now();
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
