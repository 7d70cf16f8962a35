#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "runtime/base/status.h"
#include "runtime/metrics/registry.h"

namespace latentd::metrics {

struct HttpEndpointOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 0;                                      // 0: any free one
  std::function<Status()> live;                           // /healthz: the process answers
  std::function<Status()> ready;                          // /readyz: it takes jobs; the status says why not
  std::function<std::string(uint16_t port)> config_text;  // /config: the effective configuration, with the bound port
};

// The daemon's HTTP port: /metrics, /healthz, /readyz and /config, all read only: other methods than GET and HEAD
// answer 405. A failed check answers 503 with its reason. Connections are served one request each by a fixed number of
// threads; further ones wait in the kernel. Owner: the main; the registry and what live and ready use outlive it.
// Thread: any. States: serving from start() until destroyed. Failure: a port that is taken is RESOURCE_EXHAUSTED and
// names its holder.
class HttpEndpoint {
 public:
  static StatusOr<std::unique_ptr<HttpEndpoint>> start(HttpEndpointOptions options, const Registry& registry);
  virtual ~HttpEndpoint() = default;

  virtual uint16_t port() const = 0;
};

}  // namespace latentd::metrics
