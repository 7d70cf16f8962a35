#include "tools/ctl/job_stream.h"

#include <memory>

namespace latentd::ctl {
namespace {

constexpr int kAttemptsMax = 3;  // of a download whose connection breaks; what came is kept

// The outcome of the queue's one operation; ticks until it is there. The connection's pings bound the whole wait.
bool nextEvent(grpc::CompletionQueue& queue, const std::function<void()>& tick) {
  void* tag = nullptr;
  bool ok = false;
  while (queue.AsyncNext(&tag, &ok, std::chrono::system_clock::now() + kFollowTick) ==
         grpc::CompletionQueue::NextStatus::TIMEOUT)
    tick();
  return ok;
}

}  // namespace

StreamSlot::Use::Use(StreamSlot& slot, grpc::ClientContext& context) : slot_(slot) {
  MutexLock held(slot_.mutex_);
  slot_.context_ = &context;
  if (slot_.cut_) context.TryCancel();
}

StreamSlot::Use::~Use() {
  MutexLock held(slot_.mutex_);
  slot_.context_ = nullptr;
}

void StreamSlot::cut() {
  MutexLock held(mutex_);
  cut_ = true;
  if (context_ != nullptr) context_->TryCancel();
}

bool StreamSlot::isCut() {
  MutexLock held(mutex_);
  return cut_;
}

grpc::Status followJob(Client& client, const std::string& id, StreamSlot& slot,
                       const std::function<void(const v1::Job&)>& update, const std::function<void()>& tick,
                       v1::Job* job) {
  v1::WatchJobRequest request;
  request.set_id(id);
  grpc::ClientContext context;
  const StreamSlot::Use use(slot, context);
  grpc::CompletionQueue queue;
  const auto reader = client.jobs().PrepareAsyncWatch(&context, request, &queue);
  reader->StartCall(nullptr);
  bool open = nextEvent(queue, tick);
  while (open) {
    reader->Read(job, nullptr);
    open = nextEvent(queue, tick);
    if (open) update(*job);
  }
  grpc::Status status;
  reader->Finish(&status, nullptr);
  nextEvent(queue, tick);
  queue.Shutdown();
  return status;
}

DownloadOutcome downloadResult(Client& client, const std::string& id, StreamSlot& slot, OutputFile& output) {
  DownloadOutcome outcome;
  for (int attempt = 0; attempt < kAttemptsMax && outcome.local.ok(); ++attempt) {
    v1::DownloadRequest request;
    request.set_id(id);
    request.set_offset(outcome.bytes);
    grpc::ClientContext context;
    const StreamSlot::Use use(slot, context);
    const auto reader = client.jobs().Download(&context, request);
    v1::DownloadChunk chunk;
    while (outcome.local.ok() && reader->Read(&chunk)) {
      outcome.local = output.write(chunk.data());
      if (outcome.local.ok()) outcome.bytes += chunk.data().size();
    }
    if (!outcome.local.ok()) context.TryCancel();
    outcome.remote = reader->Finish();
    if (outcome.remote.error_code() != grpc::StatusCode::UNAVAILABLE) break;
  }
  return outcome;
}

}  // namespace latentd::ctl
