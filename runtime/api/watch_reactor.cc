#include "runtime/api/watch_reactor.h"

#include <utility>

#include "runtime/api/convert.h"

namespace latentd::api {
namespace {

// Distinct states that may wait for a slow reader. A job passes at most queued, running, queued and running again after
// a lost worker, cancelling and its end.
constexpr size_t kPendingMax = 8;

}  // namespace

WatchReactor::WatchReactor(StreamLimit::Lease lease, CallMetrics call, metrics::Counter& skipped)
    : lease_(std::move(lease)), call_(call), skipped_(skipped) {}

void WatchReactor::start(supervisor::JobService& jobs, const JobId& id) {
  auto watch = jobs.watch(id, [this](const v1::Job& job) { offer(job); });
  if (watch.ok()) {
    watch_ = std::move(watch).value();
    return;
  }
  MutexLock held(mutex_);
  finish(toGrpc(watch.status()));
}

void WatchReactor::offer(const v1::Job& job) {
  MutexLock held(mutex_);
  if (finished_ || cancelled_) return;
  const bool supersedes =
      !pending_.empty() && (pending_.back().state() == job.state() || pending_.size() == kPendingMax);
  if (supersedes) {
    pending_.back() = job;
    skipped_.Increment();
  } else {
    pending_.push_back(job);
  }
  if (!writing_) writeNext();
}

void WatchReactor::writeNext() {
  writing_job_ = std::move(pending_.front());
  pending_.pop_front();
  writing_ = true;
  write(writing_job_);
}

void WatchReactor::finish(const grpc::Status& status) {
  if (finished_) return;
  finished_ = true;
  code_ = status.error_code();
  Finish(status);
}

void WatchReactor::OnWriteDone(bool ok) {
  MutexLock held(mutex_);
  writing_ = false;
  if (!ok || cancelled_) {
    finish(grpc::Status::CANCELLED);
  } else if (isTerminal(writing_job_.state())) {
    finish(grpc::Status::OK);
  } else if (!pending_.empty()) {
    writeNext();
  }
}

void WatchReactor::OnCancel() {
  MutexLock held(mutex_);
  cancelled_ = true;
  if (!writing_) finish(grpc::Status::CANCELLED);
}

void WatchReactor::OnDone() {
  {
    MutexLock held(mutex_);
    call_.ended(code_);
  }
  delete this;
}

}  // namespace latentd::api
