#include "runtime/config/locations.h"

namespace latentd::config {

Status Locations::refuse(std::string_view path, std::string_view message) const {
  std::string text = file_ + ":" + std::to_string(lineOf(path)) + ": ";
  text.append(path).append(path.empty() ? "" : ": ").append(message);
  return makeStatus(absl::StatusCode::kInvalidArgument, text);
}

int Locations::lineOf(std::string_view path) const {
  while (!path.empty()) {
    if (const auto line = lines_.find(path); line != lines_.end()) return line->second;
    const size_t end = path.find_last_of(".[");
    path = path.substr(0, end == std::string_view::npos ? 0 : end);
  }
  return 1;
}

std::string indexed(std::string_view list, size_t index) {
  return std::string(list) + "[" + std::to_string(index) + "]";
}

std::string joined(std::string_view section, std::string_view leaf) {
  return section.empty() ? std::string(leaf) : std::string(section) + "." + std::string(leaf);
}

}  // namespace latentd::config
