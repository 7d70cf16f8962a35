#include "runtime/metrics/http_endpoint.h"

#include <httplib.h>
#include <pthread.h>
#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <deque>
#include <future>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/base/mutex.h"
#include "runtime/base/port_holder.h"

namespace latentd::metrics {
namespace {

// Each serves one connection. More than a port scanner, or a client that forgets to close, holds open for as long as it
// takes to drop them: a health check must not wait behind those. Started as they are needed.
constexpr size_t kThreadsMax = 64;
constexpr size_t kAcceptedMax = 64;  // accepted and not yet served; then the acceptor waits
// Held by the kernel until they are accepted. The library, which is compiled, asks for 5; of whoever comes beyond, the
// kernel hears again a second later, then two, then four.
constexpr int kBacklog = 128;
constexpr std::chrono::seconds kIo{2};         // a client that sends or takes nothing for so long is dropped
constexpr std::chrono::seconds kFirstByte{1};  // the same until it sends anything
constexpr std::chrono::seconds kRecheck{1};
constexpr size_t kBodyBytesMax = 1024;  // nobody has anything to post
constexpr std::chrono::seconds kStart{10};

// httplib's own pool queues without a bound.
class BoundedThreadPool final : public httplib::TaskQueue {
 public:
  void enqueue(std::function<void()> task) override {
    MutexLock held(mutex_);
    while (tasks_.size() >= kAcceptedMax)
      changed_.waitUntil(mutex_, std::chrono::steady_clock::now() + kRecheck);
    tasks_.push_back(std::move(task));
    if (tasks_.size() > idle_ && threads_.size() < kThreadsMax) threads_.emplace_back([this] { run(); });
    changed_.notifyAll();
  }

  void shutdown() override {
    {
      MutexLock held(mutex_);
      stopping_ = true;
      changed_.notifyAll();
    }
    for (std::thread& thread : threads_)
      thread.join();
  }

 private:
  void run() {
    pthread_setname_np(pthread_self(), "http");
    while (std::optional<std::function<void()>> task = next())
      (*task)();
  }

  // Nothing once it stops and all that was accepted is served: a task owns its connection.
  std::optional<std::function<void()>> next() {
    MutexLock held(mutex_);
    while (tasks_.empty()) {
      if (stopping_) return std::nullopt;
      ++idle_;
      changed_.waitUntil(mutex_, std::chrono::steady_clock::now() + kRecheck);
      --idle_;
    }
    std::function<void()> task = std::move(tasks_.front());
    tasks_.pop_front();
    changed_.notifyAll();
    return task;
  }

  Mutex mutex_;
  CondVar changed_;
  std::deque<std::function<void()>> tasks_ GUARDED_BY(mutex_);
  size_t idle_ GUARDED_BY(mutex_) = 0;
  bool stopping_ GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;  // of the acceptor alone; last: they use all of the above
};

void answerCheck(const std::function<Status()>& check, httplib::Response& response) {
  const Status status = check();
  response.status = status.ok() ? 200 : 503;
  response.set_content(status.ok() ? "ok\n" : messageOf(status) + "\n", "text/plain; charset=utf-8");
}

class Endpoint final : public HttpEndpoint {
 public:
  Endpoint(HttpEndpointOptions options, const Registry& registry) : options_(std::move(options)), registry_(registry) {
    configure();
    route();
  }

  ~Endpoint() override {
    if (!thread_.joinable()) return;
    server_.stop();
    thread_.join();
  }

  Status listen() {
    if (!bind()) return bindError(errno);
    if (::listen(socket_, kBacklog) != 0) return errnoStatus(errno, "http: listening");
    std::promise<void> running;
    std::future<void> is_running = running.get_future();
    // Asked for once the server counts as running: stop() before that would have no effect.
    server_.new_task_queue = [&running]() -> httplib::TaskQueue* {
      auto pool = std::make_unique<BoundedThreadPool>();
      running.set_value();
      return pool.release();
    };
    thread_ = std::thread([this] {
      pthread_setname_np(pthread_self(), "http-accept");
      server_.listen_after_bind();
    });
    if (is_running.wait_for(kStart) != std::future_status::ready) {
      return makeStatus(absl::StatusCode::kDeadlineExceeded, "the HTTP endpoint did not start listening");
    }
    return absl::OkStatus();
  }

  uint16_t port() const override { return port_; }

 private:
  void configure() {
    server_.set_read_timeout(kIo);
    server_.set_write_timeout(kIo);
    server_.set_keep_alive_max_count(1);
    server_.set_keep_alive_timeout(kFirstByte.count());  // also what a connection waits for its first byte
    server_.set_payload_max_length(kBodyBytesMax);
    // The default also sets SO_REUSEPORT, with which a second daemon would silently share the port.
    server_.set_socket_options([this](socket_t socket) {
      const int yes = 1;
      setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
      socket_ = socket;  // of the addresses that are tried the last one is bound
    });
  }

  void route() {
    server_.Get("/metrics", [this](const httplib::Request&, httplib::Response& response) {
      response.set_content(registry_.expose(), "text/plain; version=0.0.4; charset=utf-8");
    });
    server_.Get("/healthz",
                [this](const httplib::Request&, httplib::Response& response) { answerCheck(options_.live, response); });
    server_.Get("/readyz", [this](const httplib::Request&, httplib::Response& response) {
      answerCheck(options_.ready, response);
    });
    server_.Get("/config", [this](const httplib::Request&, httplib::Response& response) {
      response.set_content(options_.config_text(port_), "text/plain; charset=utf-8");
    });
    refuseOtherMethods();
    server_.set_error_handler([](const httplib::Request&, httplib::Response& response) {
      if (!response.body.empty()) return;
      response.set_content("see /metrics, /healthz, /readyz, /config\n", "text/plain; charset=utf-8");
    });
  }

  void refuseOtherMethods() {
    const auto refuse = [](const httplib::Request&, httplib::Response& response) {
      response.status = 405;
      response.set_header("Allow", "GET, HEAD");
      response.set_content("only GET and HEAD are answered\n", "text/plain; charset=utf-8");
    };
    const char* const paths = "/(metrics|healthz|readyz|config)";
    server_.Post(paths, refuse);
    server_.Put(paths, refuse);
    server_.Patch(paths, refuse);
    server_.Delete(paths, refuse);
    server_.Options(paths, refuse);
  }

  bool bind() {
    errno = 0;
    if (options_.port != 0) {
      port_ = options_.port;
      return server_.bind_to_port(options_.host, options_.port);
    }
    const int port = server_.bind_to_any_port(options_.host);
    port_ = static_cast<uint16_t>(port > 0 ? port : 0);
    return port > 0;
  }

  Status bindError(int error_number) const {
    const std::string what = "http: cannot listen on " + options_.host + ":" + std::to_string(options_.port);
    const std::string holder = options_.port == 0 ? "" : describePortHolder(options_.port);
    if (!holder.empty()) {
      return makeStatus(absl::StatusCode::kResourceExhausted,
                        what + ": the port is held by " + holder + "; stop it or choose another port");
    }
    return errnoStatus(error_number == 0 ? EADDRNOTAVAIL : error_number, what);
  }

  const HttpEndpointOptions options_;
  const Registry& registry_;
  httplib::Server server_;
  uint16_t port_ = 0;
  socket_t socket_ = -1;  // the server's
  std::thread thread_;    // last: it uses all of the above
};

}  // namespace

StatusOr<std::unique_ptr<HttpEndpoint>> HttpEndpoint::start(HttpEndpointOptions options, const Registry& registry) {
  auto endpoint = std::make_unique<Endpoint>(std::move(options), registry);
  LATENTD_RETURN_IF_ERROR(endpoint->listen());
  return std::unique_ptr<HttpEndpoint>(std::move(endpoint));
}

}  // namespace latentd::metrics
