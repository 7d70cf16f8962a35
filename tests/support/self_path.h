#pragma once

#include <filesystem>
#include <string>

namespace latentd::testing {

// A helper binary that the build puts into the running test's own folder.
inline std::string siblingBinary(const std::string& name) {
  return (std::filesystem::read_symlink("/proc/self/exe").parent_path() / name).string();
}

// A binary of the same build by its path in the source tree, "tools/latentctl".
inline std::string builtBinary(const std::string& path) {
  const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
  return self.substr(0, self.rfind("/tests/")) + "/" + path;
}

// A file of the source tree; tests run in its root or in a folder of links to it.
inline std::string sourceFile(const std::string& path) { return std::filesystem::canonical(path).string(); }

}  // namespace latentd::testing
