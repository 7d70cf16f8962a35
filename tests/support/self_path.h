#pragma once

#include <filesystem>
#include <string>

namespace latentd::testing {

// A helper binary that the build puts into the running test's own folder.
inline std::string siblingBinary(const std::string& name) {
  return (std::filesystem::read_symlink("/proc/self/exe").parent_path() / name).string();
}

}  // namespace latentd::testing
