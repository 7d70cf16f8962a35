#include "tools/ctl/duration.h"

#include <string>
#include <variant>

#include "runtime/config/value.h"

namespace latentd::ctl {

StatusOr<std::chrono::milliseconds> parseDuration(std::string_view text, std::chrono::milliseconds least,
                                                  std::chrono::milliseconds most) {
  const config::Range range{static_cast<double>(least.count()), static_cast<double>(most.count())};
  StatusOr<config::Value> value = config::parseScalar({config::Type::kDuration, range, {}}, text);
  if (value.ok()) return std::get<std::chrono::milliseconds>(*value);
  const bool bare = !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
  if (!bare) return value.status();
  return absl::InvalidArgumentError(messageOf(value.status()) + "; for seconds write " + std::string(text) + "s");
}

}  // namespace latentd::ctl
