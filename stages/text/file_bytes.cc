#include "stages/text/file_bytes.h"

#include <fmt/format.h>

#include <cerrno>
#include <fstream>
#include <utility>

namespace latentd::stages {
namespace {

// umT5's tokenizer.json has 17 MB; ten times that is another file by mistake.
constexpr size_t kBytesMax = 170 << 20;

}  // namespace

StatusOr<std::string> readFileBytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return errnoStatus(errno, "cannot open " + path);
  const auto size = static_cast<std::streamoff>(file.tellg());
  // A directory opens, but has no end.
  if (size < 0 || static_cast<size_t>(size) > kBytesMax) {
    return absl::InvalidArgumentError(fmt::format("{}: expected a file of at most {} bytes", path, kBytesMax));
  }
  std::string bytes(static_cast<size_t>(size), '\0');
  file.seekg(0);
  if (!file.read(bytes.data(), size)) return errnoStatus(EIO, "cannot read " + path);
  return bytes;
}

}  // namespace latentd::stages
