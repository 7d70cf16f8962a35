#pragma once

#include <string>
#include <vector>

#include "tests/support/temp_dir.h"

namespace latentd::stages::testing {

// A folder for one test's files, removed at the end. Owner: the test.
class TempCheckpoint {
 public:
  const std::string& path() const { return folder_.path(); }
  // Both return the path of the file written; `name` may have folders.
  std::string write(const std::string& name, const std::string& bytes) const;
  std::string writeSafetensors(const std::string& name, const std::string& header, const std::string& data) const;
  // Copies a file or folder into this one under its own name.
  void copy(const std::string& source) const;
  void remove(const std::string& name) const;

 private:
  const latentd::testing::TempDir folder_;
};

// The bytes of a safetensors file with this header and data.
std::string safetensorsBytes(const std::string& header, const std::string& data);
std::string readFile(const std::string& path);
// In memory order.
std::string bytesOf(const std::vector<float>& values);

}  // namespace latentd::stages::testing
