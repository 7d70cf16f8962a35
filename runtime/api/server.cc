#include "runtime/api/server.h"

#include <arpa/inet.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/resource_quota.h>

#include <optional>
#include <utility>

#include "runtime/api/admin_service.h"
#include "runtime/api/health_reporter.h"
#include "runtime/api/jobs_service.h"
#include "runtime/base/log.h"
#include "runtime/base/port_holder.h"

namespace latentd::api {
namespace {

// A request is a prompt and some numbers; a longer one must still reach the check that names the limit.
constexpr int kRequestBytesMax = 1024 * 1024;
// A client that vanished without closing is noticed after their sum; a client may ask as often as kClientPing.
constexpr int kKeepaliveMs = 30'000;
constexpr int kKeepaliveTimeoutMs = 20'000;
constexpr int kClientPingMs = 1'000;
constexpr int kStreamsPerConnectionMax = 1024;
// gRPC's reflection service is a synchronous one and holds a thread a stream; ours hold none.
constexpr int kSyncThreadsMax = 16;

bool isLoopback(const std::string& host) {
  in_addr address{};
  if (inet_pton(AF_INET, host.c_str(), &address) == 1) return (ntohl(address.s_addr) >> 24) == 127;
  return host == "localhost" || host == "::1";
}

std::string withPort(const std::string& host, uint16_t port) {
  const bool is_ipv6 = host.find(':') != std::string::npos;
  return (is_ipv6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

void configure(grpc::ServerBuilder& builder) {
  builder.SetMaxReceiveMessageSize(kRequestBytesMax);
  // With SO_REUSEPORT a second daemon would silently share the port.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, kClientPingMs);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kStreamsPerConnectionMax);
  builder.SetSyncServerOption(grpc::ServerBuilder::SyncServerOption::NUM_CQS, 1);
  builder.SetSyncServerOption(grpc::ServerBuilder::SyncServerOption::MAX_POLLERS, 1);
  grpc::ResourceQuota quota("api");
  quota.SetMaxThreads(kSyncThreadsMax);
  builder.SetResourceQuota(quota);
}

class GrpcServer final : public Server {
 public:
  GrpcServer(const ServerOptions& options, supervisor::JobService& jobs, metrics::ApiMetrics& metrics)
      : host_(options.host),
        jobs_(jobs),
        jobs_service_(jobs, metrics),
        admin_service_(jobs, metrics, options.drain_deadline) {}

  ~GrpcServer() override { stop(std::chrono::milliseconds(0)); }

  Status listen(uint16_t port) {
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
    grpc::ServerBuilder builder;
    configure(builder);
    int bound_port = 0;
    builder.AddListeningPort(withPort(host_, port), grpc::InsecureServerCredentials(), &bound_port);
    builder.RegisterService(&jobs_service_);
    builder.RegisterService(&admin_service_);
    server_ = builder.BuildAndStart();
    if (server_ == nullptr || bound_port == 0) return listenError(port);
    port_ = static_cast<uint16_t>(bound_port);
    health_.emplace(*server_->GetHealthCheckService(), jobs_);
    if (!isLoopback(host_)) {
      getLogger("api")->warn("{} is reachable from other hosts, and there is no authentication", address());
    }
    return absl::OkStatus();
  }

  uint16_t port() const override { return port_; }
  std::string address() const override { return withPort(host_, port_); }

  void stop(std::chrono::milliseconds grace) override {
    if (server_ == nullptr) return;
    health_.reset();
    server_->Shutdown(std::chrono::system_clock::now() + grace);
    server_->Wait();
    server_.reset();
  }

 private:
  Status listenError(uint16_t port) const {
    const std::string what = "listen: cannot serve on " + withPort(host_, port);
    const std::string holder = port == 0 ? "" : describePortHolder(port);
    if (!holder.empty()) {
      return makeStatus(absl::StatusCode::kResourceExhausted,
                        what + ": the port is held by " + holder + "; stop it or choose another port");
    }
    return makeStatus(absl::StatusCode::kInvalidArgument, what + "; give an address of this host, such as 127.0.0.1");
  }

  const std::string host_;
  supervisor::JobService& jobs_;
  JobsService jobs_service_;
  AdminService admin_service_;
  uint16_t port_ = 0;
  std::unique_ptr<grpc::Server> server_;  // after the services: their reactors end before they do
  std::optional<HealthReporter> health_;  // last: it tells the server's health service
};

}  // namespace

StatusOr<std::unique_ptr<Server>> Server::start(const ServerOptions& options, supervisor::JobService& jobs,
                                                metrics::ApiMetrics& metrics) {
  auto server = std::make_unique<GrpcServer>(options, jobs, metrics);
  LATENTD_RETURN_IF_ERROR(server->listen(options.port));
  return std::unique_ptr<Server>(std::move(server));
}

}  // namespace latentd::api
