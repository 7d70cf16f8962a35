#include "runtime/worker/control_client.h"

#include <pthread.h>

#include <utility>

namespace latentd::worker {
namespace {

// How long the writer sleeps on an empty queue before it looks again whether the stream still stands.
constexpr std::chrono::seconds kIdleWait{1};

}  // namespace

StatusOr<std::unique_ptr<ControlClient>> ControlClient::connect(const std::string& target, EventQueue& events,
                                                                Handlers handlers, Clock::TimePoint deadline) {
  std::shared_ptr<grpc::Channel> channel = grpc::CreateChannel(target, grpc::InsecureChannelCredentials());
  const auto wait = deadline - std::chrono::steady_clock::now();
  if (!channel->WaitForConnected(std::chrono::system_clock::now() + wait)) {
    return absl::UnavailableError("nobody answers at " + target + ": latent-worker is started by latentd");
  }
  return std::unique_ptr<ControlClient>(new ControlClient(std::move(channel), events, std::move(handlers)));
}

ControlClient::ControlClient(std::shared_ptr<grpc::Channel> channel, EventQueue& events, Handlers handlers)
    : events_(events),
      handlers_(std::move(handlers)),
      stub_(internal::v1::WorkerControl::NewStub(channel)),
      stream_(stub_->Connect(&context_)),
      writer_([this] { write(); }),
      reader_([this] { read(); }) {}

ControlClient::~ControlClient() {
  events_.close();
  context_.TryCancel();
  writer_.join();
  reader_.join();
}

void ControlClient::read() {
  ::pthread_setname_np(::pthread_self(), "control-read");
  internal::v1::WorkerCommands batch;
  while (stream_->Read(&batch)) {
    for (internal::v1::WorkerCommand& command : *batch.mutable_commands())
      handlers_.on_command(std::move(command));
  }
  const grpc::Status status = stream_->Finish();
  {
    MutexLock lock(mutex_);
    reading_ended_ = true;
    changed_.notifyAll();
  }
  handlers_.on_end(makeStatus(static_cast<absl::StatusCode>(status.error_code()), status.error_message()));
}

void ControlClient::write() {
  ::pthread_setname_np(::pthread_self(), "control-write");
  while (!events_.ended()) {
    const internal::v1::WorkerEvents batch = events_.pop(std::chrono::steady_clock::now() + kIdleWait);
    if (batch.events().empty()) continue;
    // A broken stream ends the reader too, which tells.
    if (!stream_->Write(batch)) return;
  }
  stream_->WritesDone();
}

void ControlClient::finish(Clock::TimePoint deadline) {
  events_.close();
  MutexLock lock(mutex_);
  while (!reading_ended_) {
    if (!changed_.waitUntil(mutex_, deadline)) break;
  }
}

}  // namespace latentd::worker
