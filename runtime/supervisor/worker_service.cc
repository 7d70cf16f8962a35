#include "runtime/supervisor/worker_service.h"

#include <chrono>
#include <deque>
#include <optional>
#include <utility>

#include "runtime/base/message_batch.h"
#include "runtime/base/unix_socket.h"
#include "runtime/supervisor/limits.h"

namespace latentd::supervisor {
namespace {

grpc::Status toGrpc(const Status& status) { return {static_cast<grpc::StatusCode>(status.code()), messageOf(status)}; }

}  // namespace

// One worker's stream. gRPC calls it from its own threads, one reaction of a kind at a time; the loop calls send(),
// close() and handled(). All of gRPC's Start calls are made under the mutex, so that none follows Finish; gRPC never
// runs a reaction inside of one.
class WorkerService::Stream final
    : public grpc::ServerBidiReactor<internal::v1::WorkerEvents, internal::v1::WorkerCommands> {
 public:
  Stream(WorkerService& service, ConnectionId id) : service_(service), id_(id) {}

  void begin(std::shared_ptr<Stream> self) {
    const MutexLock held(mutex_);
    self_ = std::move(self);
    StartRead(&events_);
  }

  bool send(internal::v1::WorkerCommand command) {
    const MutexLock held(mutex_);
    if (end_) return true;
    if (commands_.size() >= kCommandsQueuedMax) return false;
    commands_.push_back(std::move(command));
    write();
    return true;
  }

  void close(const Status& status) {
    const MutexLock held(mutex_);
    finish(status);
  }

  // The loop is done with so many events.
  void handled(int events) {
    const MutexLock held(mutex_);
    unhandled_ -= events;
    if (std::exchange(paused_, false) && !end_) StartRead(&events_);
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      close(absl::OkStatus());
      return;
    }
    auto batch = std::make_shared<internal::v1::WorkerEvents>();
    {
      const MutexLock held(mutex_);
      batch->Swap(&events_);
      unhandled_ += batch->events_size();
    }
    service_.loop_.post([service = &service_, id = id_, batch, stream = self_] {
      service->handler_.onEvents(id, *batch);
      stream->handled(batch->events_size());
    });
    const MutexLock held(mutex_);
    if (end_) return;
    paused_ = unhandled_ >= kEventsUnhandledMax;
    if (!paused_) StartRead(&events_);
  }

  void OnWriteDone(bool ok) override {
    const MutexLock held(mutex_);
    writing_ = false;
    if (!ok) commands_.clear();
    write();
    if (!writing_ && end_ && !finished_) {
      finished_ = true;
      Finish(toGrpc(*end_));
    }
  }

  void OnCancel() override {
    const MutexLock held(mutex_);
    finish(absl::CancelledError("the stream was cancelled"));
  }

  void OnDone() override {
    std::shared_ptr<Stream> self;
    {
      const MutexLock held(service_.mutex_);
      service_.streams_.erase(id_);
    }
    service_.loop_.post([service = &service_, id = id_] { service->handler_.onClosed(id); });
    {
      const MutexLock held(mutex_);
      self.swap(self_);
    }
  }

 private:
  // One command alone goes at once; what comes while it is being written goes together.
  void write() REQUIRES(mutex_) {
    if (writing_ || commands_.empty()) return;
    writing_ = true;
    written_.clear_commands();
    moveBatch(commands_, *written_.mutable_commands());
    StartWrite(&written_);
  }

  void finish(const Status& status) REQUIRES(mutex_) {
    if (end_) return;
    end_ = status;
    if (writing_) return;  // OnWriteDone finishes
    finished_ = true;
    Finish(toGrpc(status));
  }

  WorkerService& service_;
  const ConnectionId id_;
  Mutex mutex_;
  internal::v1::WorkerEvents events_;     // gRPC's between StartRead and OnReadDone
  internal::v1::WorkerCommands written_;  // gRPC's between StartWrite and OnWriteDone
  std::deque<internal::v1::WorkerCommand> commands_ GUARDED_BY(mutex_);
  int unhandled_ GUARDED_BY(mutex_) = 0;
  bool writing_ GUARDED_BY(mutex_) = false;
  bool paused_ GUARDED_BY(mutex_) = false;
  bool finished_ GUARDED_BY(mutex_) = false;
  std::optional<Status> end_ GUARDED_BY(mutex_);
  std::shared_ptr<Stream> self_;  // gRPC's share: set before the first reaction, dropped in the last
};

class WorkerService::Service final : public internal::v1::WorkerControl::CallbackService {
 public:
  explicit Service(WorkerService& owner) : owner_(owner) {}

  grpc::ServerBidiReactor<internal::v1::WorkerEvents, internal::v1::WorkerCommands>* Connect(
      grpc::CallbackServerContext*) override {
    std::shared_ptr<Stream> stream;
    {
      const MutexLock held(owner_.mutex_);
      const ConnectionId id(owner_.next_connection_++);
      stream = std::make_shared<Stream>(owner_, id);
      owner_.streams_.emplace(id, stream);
    }
    Stream* reactor = stream.get();
    reactor->begin(std::move(stream));
    return reactor;
  }

 private:
  WorkerService& owner_;
};

WorkerService::WorkerService(EventLoop& loop, ControlHandler& handler)
    : loop_(loop), handler_(handler), service_(std::make_unique<Service>(*this)) {}

WorkerService::~WorkerService() { stop(); }

Status WorkerService::start(const std::string& socket_path) {
  if (socket_path.size() > kSocketPathBytesMax) {
    return absl::InvalidArgumentError("the control socket's path \"" + socket_path + "\" is longer than " +
                                      std::to_string(kSocketPathBytesMax) + " bytes: choose a shorter runtime_dir");
  }
  grpc::ServerBuilder builder;
  builder.AddListeningPort("unix:" + socket_path, grpc::InsecureServerCredentials());
  builder.RegisterService(service_.get());
  server_ = builder.BuildAndStart();
  if (server_ == nullptr) return absl::UnavailableError("cannot listen on the control socket " + socket_path);
  return absl::OkStatus();
}

void WorkerService::stop() {
  if (server_ == nullptr) return;
  server_->Shutdown(std::chrono::system_clock::now());
  server_->Wait();
  server_.reset();
}

std::shared_ptr<WorkerService::Stream> WorkerService::find(ConnectionId connection) {
  const MutexLock held(mutex_);
  const auto found = streams_.find(connection);
  return found == streams_.end() ? nullptr : found->second;
}

bool WorkerService::send(ConnectionId connection, internal::v1::WorkerCommand command) {
  const std::shared_ptr<Stream> stream = find(connection);
  return stream == nullptr || stream->send(std::move(command));
}

void WorkerService::close(ConnectionId connection, const Status& status) {
  if (const std::shared_ptr<Stream> stream = find(connection)) stream->close(status);
}

}  // namespace latentd::supervisor
