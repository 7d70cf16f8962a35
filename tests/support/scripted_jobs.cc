#include "tests/support/scripted_jobs.h"

namespace latentd::testing {
namespace {

constexpr size_t kResultBytes = 700'001;  // several download chunks, and no multiple of one
constexpr uint32_t kDenoiseFrom = 2;      // ticks: one queued, one text, then the steps, then decode
// So many ticks a job stays queued for whoever submits it and then watches it, which on a busy machine is later.
constexpr uint32_t kUnwatchedTicksMax = 100;

}  // namespace

ScriptedJobs::ScriptedJobs(FakeJobService& jobs, std::chrono::milliseconds tick) : jobs_(jobs), tick_(tick) {
  thread_ = std::thread([this] { run(); });
}

ScriptedJobs::~ScriptedJobs() {
  {
    MutexLock held(mutex_);
    stopping_ = true;
    stop_requested_.notifyAll();
  }
  thread_.join();
}

std::string ScriptedJobs::resultContent() {
  std::string content(kResultBytes, '\0');
  for (size_t i = 0; i < content.size(); ++i)
    content[i] = static_cast<char>((i * 131 + i / 509) & 0xff);
  return content;
}

void ScriptedJobs::run() {
  for (;;) {
    {
      MutexLock held(mutex_);
      const auto next = std::chrono::steady_clock::now() + tick_;
      while (!stopping_ && stop_requested_.waitUntil(mutex_, next)) {
      }
      if (stopping_) return;
    }
    for (const v1::Job& job : jobs_.jobs())
      advance(job);
  }
}

void ScriptedJobs::advance(const v1::Job& job) {
  const std::string& prompt = job.parameters().prompt();
  switch (job.state()) {
    case v1::JOB_STATE_QUEUED:
    case v1::JOB_STATE_RUNNING:
      if (prompt == "wait" || awaitsWatch(job.id())) break;
      produce(job, ticks_[job.id()]++);
      break;
    case v1::JOB_STATE_CANCELLING:
      if (prompt != "stuck") jobs_.finishCancel(job.id());
      break;
    default:
      break;
  }
}

bool ScriptedJobs::awaitsWatch(const JobId& job) {
  if (ticks_[job] > 0 || jobs_.watched(job)) return false;
  return ++unwatched_[job] <= kUnwatchedTicksMax;
}

void ScriptedJobs::produce(const v1::Job& job, uint32_t tick) {
  const std::string& prompt = job.parameters().prompt();
  const uint32_t steps = job.parameters().steps();
  if (tick == 0) return;
  if (tick == 1) return jobs_.progress(job.id(), "text", 1, 1);
  const uint32_t step = tick - kDenoiseFrom;
  if (prompt == "hold" || prompt == "stuck") return jobs_.progress(job.id(), "denoise", 1, steps);
  if (prompt == "fail" && step == 2) {
    return jobs_.fail(job.id(), absl::UnavailableError("denoise rank 0: killed by SIGKILL in step 2"));
  }
  if (step <= steps) return jobs_.progress(job.id(), "denoise", step, steps);
  if (step == steps + 1) return jobs_.progress(job.id(), "decode", 0, 0);
  jobs_.succeed(job.id(), resultContent(), prompt == "short" ? kResultBytes / 2 : kResultBytes);
}

}  // namespace latentd::testing
