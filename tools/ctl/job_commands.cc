#include "tools/ctl/job_commands.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <memory>
#include <utility>

#include "tools/ctl/format.h"
#include "tools/ctl/interrupt.h"
#include "tools/ctl/job_stream.h"
#include "tools/ctl/job_text.h"
#include "tools/ctl/output_file.h"
#include "tools/ctl/progress.h"
#include "tools/ctl/text.h"

namespace latentd::ctl {
namespace {

constexpr uint32_t kPageSizeMax = 1000;  // the API's

void print(const std::string& text) { std::fputs(text.c_str(), stdout); }

std::optional<v1::JobState> parseState(const std::string& name) {
  for (int value = v1::JOB_STATE_QUEUED; v1::JobState_IsValid(value); ++value) {
    if (stateName(static_cast<v1::JobState>(value)) == name) return static_cast<v1::JobState>(value);
  }
  return std::nullopt;
}

StatusOr<v1::ListJobsRequest> makeListRequest(const ListOptions& options) {
  v1::ListJobsRequest request;
  request.set_page_token(options.page_token);
  for (const std::string& name : options.states) {
    const std::optional<v1::JobState> state = parseState(name);
    if (!state) return absl::InvalidArgumentError("--state " + name + ": is none of " + kStateNames);
    request.add_states(*state);
  }
  if (options.since) {
    const auto then = std::chrono::system_clock::now().time_since_epoch() - *options.since;
    request.mutable_created_after()->set_seconds(std::chrono::duration_cast<std::chrono::seconds>(then).count());
  }
  return request;
}

// Pages until the limit or the end.
grpc::Status listAll(Client& client, v1::ListJobsRequest request, uint32_t limit, v1::ListJobsResponse* all) {
  do {
    const uint32_t left = limit == 0 ? kPageSizeMax : limit - static_cast<uint32_t>(all->jobs_size());
    request.set_page_size(std::min(left, kPageSizeMax));
    v1::ListJobsResponse page;
    const grpc::Status status = client.call(client.jobs(), &v1::Jobs::Stub::List, request, &page);
    if (!status.ok()) return status;
    for (v1::Job& job : *page.mutable_jobs())
      *all->add_jobs() = std::move(job);
    all->set_next_page_token(page.next_page_token());
    request.set_page_token(page.next_page_token());
  } while (!request.page_token().empty() && (limit == 0 || static_cast<uint32_t>(all->jobs_size()) < limit));
  return grpc::Status::OK;
}

grpc::Status getJob(Client& client, const std::string& id, v1::Job* job) {
  v1::GetJobRequest request;
  request.set_id(id);
  return client.call(client.jobs(), &v1::Jobs::Stub::Get, request, job);
}

}  // namespace

ExitCode runList(const GlobalOptions& global, const ListOptions& options) {
  Client client(global);
  const StatusOr<v1::ListJobsRequest> request = makeListRequest(options);
  if (!request.ok()) return client.fail(ExitCode::kUsage, messageOf(request.status()));
  v1::ListJobsResponse all;
  const grpc::Status status = listAll(client, *request, options.limit, &all);
  if (!status.ok()) return client.fail(status);
  if (options.ids_only) {
    for (const v1::Job& job : all.jobs())
      print(job.id() + "\n");
  } else if (global.json) {
    print(toJson(all, true));
  } else {
    print(formatJobs({all.jobs().begin(), all.jobs().end()}));
    if (!all.next_page_token().empty()) std::fputs("more jobs: --limit 0 lists all\n", stderr);
  }
  return ExitCode::kOk;
}

ExitCode runGet(const GlobalOptions& global, const std::string& id) {
  Client client(global);
  v1::Job job;
  const grpc::Status status = getJob(client, id, &job);
  if (!status.ok()) return client.fail(status);
  print(global.json ? toJson(job, true) : formatJob(job));
  return ExitCode::kOk;
}

ExitCode runWatch(const GlobalOptions& global, const std::string& id) {
  Client client(global);
  v1::Job job;
  // Unlike a stream it has a deadline: a daemon that is not there or does not answer shows here.
  if (const grpc::Status status = getJob(client, id, &job); !status.ok()) return client.fail(status);
  const std::unique_ptr<Progress> progress = Progress::create(stderr, global.json);
  StreamSlot slot;
  const grpc::Status status = followJob(
      client, id, slot,
      [&](const v1::Job& update) {
        progress->show(update);
        if (!global.json) return;
        print(toJson(update, false));
        std::fflush(stdout);
      },
      [&] { progress->tick(); }, &job);
  if (!status.ok()) return client.failStream(status, id, stateName(job.state()));
  if (job.state() == v1::JOB_STATE_SUCCEEDED) {
    if (!global.json) print("job " + id + " succeeded: `latentctl download " + id + "` fetches the result\n");
    return ExitCode::kOk;
  }
  if (!global.json) {
    progress->end(describeEnd(job));
  }
  return job.state() == v1::JOB_STATE_FAILED ? ExitCode::kJobFailed : ExitCode::kJobCancelled;
}

ExitCode runCancel(const GlobalOptions& global, const std::vector<std::string>& ids) {
  Client client(global);
  ExitCode first_failure = ExitCode::kOk;
  for (const std::string& id : ids) {
    v1::CancelJobRequest request;
    request.set_id(id);
    v1::Job job;
    const grpc::Status status = client.call(client.jobs(), &v1::Jobs::Stub::Cancel, request, &job);
    if (status.ok()) {
      print(global.json ? toJson(job, false) : "job " + id + " is " + stateName(job.state()) + "\n");
    } else if (const ExitCode code = client.fail(status); first_failure == ExitCode::kOk) {
      first_failure = code;
    }
  }
  return first_failure;
}

ExitCode runDelete(const GlobalOptions& global, const std::vector<std::string>& ids) {
  Client client(global);
  ExitCode first_failure = ExitCode::kOk;
  for (const std::string& id : ids) {
    v1::DeleteJobRequest request;
    request.set_id(id);
    v1::DeleteJobResponse response;
    const grpc::Status status = client.call(client.jobs(), &v1::Jobs::Stub::Delete, request, &response);
    if (status.ok()) {
      print(global.json ? toJson(request, false) : "job " + id + " is deleted\n");
    } else if (const ExitCode code = client.fail(status); first_failure == ExitCode::kOk) {
      first_failure = code;
    }
  }
  return first_failure;
}

ExitCode runDownload(const GlobalOptions& global, const DownloadOptions& options) {
  std::signal(SIGPIPE, SIG_IGN);  // a reader of -o - that goes away is an error of writing
  const SteadyClock clock;
  Interrupt interrupt(clock);  // before the client, whose threads inherit the blocked signals
  Client client(global);
  v1::Job job;
  if (const grpc::Status status = getJob(client, options.id, &job); !status.ok()) return client.fail(status);
  const std::string path =
      options.output.empty() ? options.id + "." + formatName(job.parameters().format()) : options.output;
  if (const Status fits = checkDownloadName(path, job.parameters().format()); !fits.ok()) {
    return client.fail(ExitCode::kUsage, messageOf(fits));
  }
  StatusOr<OutputFile> output = OutputFile::open(path);
  if (!output.ok()) {
    const bool usage = output.status().code() == absl::StatusCode::kInvalidArgument;
    return client.fail(usage ? ExitCode::kUsage : ExitCode::kLocalFile, messageOf(output.status()));
  }
  StreamSlot slot;
  std::atomic<int> signal_number{0};
  interrupt.setHandler([&](int number) {
    signal_number = number;
    slot.cut();
  });
  DownloadOutcome outcome = downloadResult(client, options.id, slot, *output);
  interrupt.setHandler(nullptr);
  if (slot.isCut() && !outcome.remote.ok()) return exitCodeOfSignal(signal_number);
  if (outcome.local.ok() && outcome.remote.ok()) outcome.local = output->commit();
  if (absl::IsAborted(outcome.local)) return exitCodeOfSignal(SIGPIPE);
  if (!outcome.local.ok()) return client.fail(ExitCode::kLocalFile, messageOf(outcome.local));
  if (!outcome.remote.ok()) return client.failStream(outcome.remote, options.id, stateName(job.state()));
  if (global.json) {
    std::fputs(toJson(job, true).c_str(), output->isStdout() ? stderr : stdout);
  } else if (!output->isStdout()) {
    print("wrote " + path + " (" + formatBytes(outcome.bytes) + ")\n");
  }
  return ExitCode::kOk;
}

}  // namespace latentd::ctl
