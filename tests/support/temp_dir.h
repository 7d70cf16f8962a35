#pragma once

#include <stdlib.h>

#include <filesystem>
#include <iterator>
#include <string>
#include <system_error>

#include "tests/support/catch.h"

namespace latentd::testing {

// An empty folder of its own, gone with the object; its path is short enough for sockets in it.
class TempDir {
 public:
  TempDir() { REQUIRE(::mkdtemp(path_.data()) != nullptr); }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }
  std::string file(const std::string& name) const { return path_ + "/" + name; }
  size_t entries() const { return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(path_), {})); }

 private:
  std::string path_ = "/tmp/ldtestXXXXXX";
};

}  // namespace latentd::testing
