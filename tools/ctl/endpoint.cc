#include "tools/ctl/endpoint.h"

#include <charconv>
#include <cstdint>
#include <string>

namespace latentd::ctl {
namespace {

bool isPort(std::string_view text) {
  uint16_t port = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  return error == std::errc() && end == text.data() + text.size() && port != 0;
}

bool isHost(std::string_view text) {
  const bool bracketed = text.size() > 2 && text.front() == '[' && text.back() == ']';
  if (bracketed) return text.find_first_not_of("0123456789abcdefABCDEF:.%", 1) == text.size() - 1;
  return !text.empty() && text.find_first_of("/:[]@ \t\n") == std::string_view::npos;
}

}  // namespace

Status checkEndpoint(std::string_view endpoint) {
  const size_t colon = endpoint.rfind(':');
  const bool valid =
      colon != std::string_view::npos && isHost(endpoint.substr(0, colon)) && isPort(endpoint.substr(colon + 1));
  if (valid) return absl::OkStatus();
  return absl::InvalidArgumentError("endpoint '" + std::string(endpoint) +
                                    "' is not HOST:PORT; for example 127.0.0.1:7411 (--endpoint, or the environment's "
                                    "LATENTD_ENDPOINT)");
}

}  // namespace latentd::ctl
