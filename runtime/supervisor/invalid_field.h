#pragma once

#include <fmt/format.h>

#include <string_view>
#include <utility>

#include "runtime/base/status.h"
#include "runtime/base/status_field.h"

namespace latentd::supervisor {

template <class... Args>
Status invalid(fmt::format_string<Args...> format, Args&&... args) {
  return absl::InvalidArgumentError(fmt::format(format, std::forward<Args>(args)...));
}

// The same for one field of a request, which begins the message: "FIELD = ...".
template <class... Args>
Status invalidField(std::string_view field, fmt::format_string<Args...> format, Args&&... args) {
  return atField(invalid("{}{}", field, fmt::format(format, std::forward<Args>(args)...)), field);
}

}  // namespace latentd::supervisor
