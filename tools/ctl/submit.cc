#include "tools/ctl/submit.h"

#include <csignal>
#include <cstdio>
#include <memory>
#include <optional>
#include <utility>

#include "runtime/base/mutex.h"
#include "runtime/base/strong_id.h"
#include "tools/ctl/format.h"
#include "tools/ctl/interrupt.h"
#include "tools/ctl/job_stream.h"
#include "tools/ctl/output_file.h"
#include "tools/ctl/progress.h"
#include "tools/ctl/submit_request.h"
#include "tools/ctl/text.h"

namespace latentd::ctl {
namespace {

// One submission, its signals included.
// Owner: runSubmit(). Thread: the command's; onSignal() on the interrupt thread.
// States: submitting -> following -> downloading -> ended. A signal in the first two cancels the job; a second one, or
// one in the third, ends the program without waiting.
class Submission {
 public:
  ~Submission();
  Submission(Client& client, const SubmitOptions& options)
      : client_(client),
        options_(options),
        progress_(Progress::create(stderr, options.quiet || options.detach || client.options().json)) {}

  void onSignal(int signal_number);
  ExitCode run(const v1::SubmitRequest& request);

 private:
  grpc::Status submit(const v1::SubmitRequest& request, v1::Job& job);
  ExitCode detach(const v1::Job& job);
  ExitCode follow(v1::Job& job);
  ExitCode ended(const v1::Job& job);
  ExitCode download(const v1::Job& job);
  void report(const v1::Job& job, uint64_t bytes);

  void submitted(const JobId& id);
  void cancelJob(const JobId& id);
  void cancelAnswered(const grpc::Status& status);
  int signalNumber();
  ExitCode leave(const std::string& message);

  Client& client_;
  const SubmitOptions& options_;
  const std::unique_ptr<Progress> progress_;
  std::optional<OutputFile> output_;
  StreamSlot stream_;

  Mutex mutex_;
  JobId id_ GUARDED_BY(mutex_);  // empty until the daemon has answered
  int signals_ GUARDED_BY(mutex_) = 0;
  int signal_number_ GUARDED_BY(mutex_) = 0;
  bool downloading_ GUARDED_BY(mutex_) = false;

  // The Cancel call: asynchronous, so that a second signal is heard while a daemon is slow to answer the first.
  grpc::ClientContext cancel_context_;
  v1::CancelJobRequest cancel_request_;
  v1::Job cancel_answer_;
  CondVar cancel_ended_;
  bool cancel_runs_ GUARDED_BY(mutex_) = false;
};

Submission::~Submission() {
  MutexLock held(mutex_);
  while (cancel_runs_) {
    cancel_context_.TryCancel();
    cancel_ended_.waitUntil(mutex_, client_.deadline());
  }
}

void Submission::onSignal(int signal_number) {
  JobId id;
  {
    MutexLock held(mutex_);
    signal_number_ = signal_number;
    ++signals_;
    id = id_;
    if (signals_ > 1 || downloading_) {
      stream_.cut();
      return;
    }
  }
  if (id.empty()) {
    progress_->note(
        "interrupted: cancelling the job once the daemon has named it (interrupt again to leave without waiting)");
  } else {
    cancelJob(id);
  }
}

int Submission::signalNumber() {
  MutexLock held(mutex_);
  return signal_number_;
}

void Submission::submitted(const JobId& id) {
  {
    MutexLock held(mutex_);
    id_ = id;
    if (signals_ == 0) return;
  }
  cancelJob(id);
}

void Submission::cancelJob(const JobId& id) {
  progress_->note("interrupted: cancelling job " + id + " (interrupt again to leave without waiting)");
  {
    MutexLock held(mutex_);
    cancel_runs_ = true;
  }
  cancel_request_.set_id(id);
  cancel_context_.set_deadline(client_.deadline());
  client_.jobs().async()->Cancel(&cancel_context_, &cancel_request_, &cancel_answer_,
                                 [this](const grpc::Status& status) { cancelAnswered(status); });
}

void Submission::cancelAnswered(const grpc::Status& status) {
  // A job that ended meanwhile is told by the watch.
  if (!status.ok() && status.error_code() != grpc::StatusCode::FAILED_PRECONDITION && !stream_.isCut()) {
    progress_->note("the job could not be cancelled: " + status.error_message());
    stream_.cut();
  }
  MutexLock held(mutex_);
  cancel_runs_ = false;
  cancel_ended_.notifyAll();
}

ExitCode Submission::leave(const std::string& message) {
  progress_->end(message);
  return exitCodeOfSignal(signalNumber());
}

ExitCode Submission::run(const v1::SubmitRequest& request) {
  if (!options_.detach && !options_.output.empty()) {
    StatusOr<OutputFile> output = OutputFile::open(options_.output);
    if (!output.ok()) {
      const bool usage = output.status().code() == absl::StatusCode::kInvalidArgument;
      return client_.fail(usage ? ExitCode::kUsage : ExitCode::kLocalFile, messageOf(output.status()));
    }
    output_.emplace(std::move(output).value());
  }
  v1::Job job;
  const grpc::Status status = submit(request, job);
  if (stream_.isCut() && !status.ok()) return leave("left; `latentctl list` shows whether the job was queued");
  if (!status.ok()) return client_.fail(withOptionNames(status));
  if (options_.detach) return detach(job);
  if (!options_.quiet && !client_.options().json) {
    progress_->note("job " + job.id() + ": " + describeParameters(job.parameters()));
  }
  submitted(job.id());
  return follow(job);
}

grpc::Status Submission::submit(const v1::SubmitRequest& request, v1::Job& job) {
  grpc::ClientContext context;
  context.set_deadline(client_.deadline());
  const StreamSlot::Use use(stream_, context);
  return client_.jobs().Submit(&context, request, &job);
}

ExitCode Submission::detach(const v1::Job& job) {
  const std::string text = client_.options().json ? toJson(job, true) : job.id() + "\n";
  std::fputs(text.c_str(), stdout);
  return ExitCode::kOk;
}

ExitCode Submission::follow(v1::Job& job) {
  const JobId id = job.id();
  const grpc::Status status = followJob(
      client_, id, stream_, [this](const v1::Job& update) { progress_->show(update); }, [this] { progress_->tick(); },
      &job);
  if (stream_.isCut())
    return leave("left without waiting for the end of job " + id + ": `latentctl get " + id + "` shows it");
  if (!status.ok()) return client_.failStream(status, id, stateName(job.state()));
  return ended(job);
}

ExitCode Submission::ended(const v1::Job& job) {
  const int signal_number = signalNumber();
  switch (job.state()) {
    case v1::JOB_STATE_SUCCEEDED:
      if (signal_number != 0) {
        return leave("job " + job.id() + " had already finished: `latentctl download " + job.id() + "` fetches it");
      }
      return download(job);
    case v1::JOB_STATE_CANCELLED:
      if (client_.options().json) std::fputs(toJson(job, true).c_str(), stdout);
      if (signal_number != 0) return leave("job " + job.id() + " is cancelled");
      progress_->end(describeEnd(job));
      return ExitCode::kJobCancelled;
    default:
      if (client_.options().json) {
        std::fputs(toJson(job, true).c_str(), stdout);
      } else {
        progress_->end(describeEnd(job));
      }
      return ExitCode::kJobFailed;
  }
}

ExitCode Submission::download(const v1::Job& job) {
  {
    MutexLock held(mutex_);
    downloading_ = true;
    if (signals_ > 0) stream_.cut();
  }
  const std::string hint = "; `latentctl download " + job.id() + "` tries again";
  if (!output_) {
    StatusOr<OutputFile> output = OutputFile::open(job.id() + "." + formatName(job.parameters().format()));
    if (!output.ok()) return client_.fail(ExitCode::kLocalFile, messageOf(output.status()) + hint);
    output_.emplace(std::move(output).value());
  }
  DownloadOutcome outcome = downloadResult(client_, job.id(), stream_, *output_);
  if (outcome.local.ok() && outcome.remote.ok()) outcome.local = output_->commit();
  if (absl::IsAborted(outcome.local)) return exitCodeOfSignal(SIGPIPE);
  if (!outcome.local.ok()) return client_.fail(ExitCode::kLocalFile, messageOf(outcome.local) + hint);
  if (stream_.isCut()) return leave("interrupted: the result stays on the daemon" + hint);
  if (!outcome.remote.ok()) return client_.failStream(outcome.remote, job.id(), stateName(job.state()));
  report(job, outcome.bytes);
  return ExitCode::kOk;
}

void Submission::report(const v1::Job& job, uint64_t bytes) {
  std::FILE* stream = output_->isStdout() ? stderr : stdout;
  const char* name = output_->isStdout() ? "standard output" : output_->path().c_str();
  if (client_.options().json) {
    std::fputs(toJson(job, true).c_str(), stream);
  } else if (options_.quiet) {
    std::fprintf(stderr, "%s, seed %s\n", name, std::to_string(job.parameters().seed()).c_str());
  } else {
    std::fprintf(stream, "wrote %s (%s) in %s\n", name, formatBytes(bytes).c_str(),
                 formatSeconds(toSeconds(job.finish_time()) - toSeconds(job.create_time())).c_str());
  }
}

}  // namespace

ExitCode runSubmit(const GlobalOptions& global, const SubmitOptions& options) {
  const StatusOr<v1::SubmitRequest> request = makeSubmitRequest(options);
  if (!request.ok()) {
    const bool usage = request.status().code() == absl::StatusCode::kInvalidArgument;
    printError(global.json, usage ? "INVALID_ARGUMENT" : "LOCAL", messageOf(request.status()));
    return usage ? ExitCode::kUsage : ExitCode::kLocalFile;
  }
  std::signal(SIGPIPE, SIG_IGN);  // a reader of -o - that goes away is an error of writing
  const SteadyClock clock;
  Interrupt interrupt(clock);  // before the client, whose threads inherit the blocked signals
  Client client(global);
  Submission submission(client, options);
  interrupt.setHandler([&submission](int signal_number) { submission.onSignal(signal_number); });
  const ExitCode code = submission.run(*request);
  interrupt.setHandler(nullptr);
  return code;
}

}  // namespace latentd::ctl
