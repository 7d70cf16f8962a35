#pragma once

#include <map>
#include <string>
#include <string_view>

#include "runtime/base/status.h"

namespace latentd::config {

// Where each key of a file stands, for messages. A value type. Thread: one while it is recorded, then any.
class Locations {
 public:
  explicit Locations(std::string file = "") : file_(std::move(file)) {}

  const std::string& file() const { return file_; }
  void record(const std::string& path, int line) { lines_[path] = line; }
  // Whether the file itself has the key.
  bool has(std::string_view path) const { return lines_.contains(path); }
  // INVALID_ARGUMENT "FILE:LINE: PATH: MESSAGE"; the line is that of the nearest key around `path` that is in the file.
  Status refuse(std::string_view path, std::string_view message) const;

 private:
  int lineOf(std::string_view path) const;

  std::string file_;
  std::map<std::string, int, std::less<>> lines_;  // "groups[1].devices" -> 14
};

// "groups[1]" of ("groups", 1)
std::string indexed(std::string_view list, size_t index);
// "groups[1].name" of ("groups[1]", "name"); "name" of ("", "name")
std::string joined(std::string_view section, std::string_view leaf);

}  // namespace latentd::config
