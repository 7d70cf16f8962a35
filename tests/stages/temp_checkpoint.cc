#include "tests/stages/temp_checkpoint.h"

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "tests/support/catch.h"

namespace latentd::stages::testing {

namespace fs = std::filesystem;

std::string TempCheckpoint::write(const std::string& name, const std::string& bytes) const {
  const fs::path file = fs::path(path()) / name;
  fs::create_directories(file.parent_path());
  std::ofstream out(file, std::ios::binary);
  out << bytes;
  REQUIRE(out.flush().good());
  return file.string();
}

std::string TempCheckpoint::writeSafetensors(const std::string& name, const std::string& header,
                                             const std::string& data) const {
  return write(name, safetensorsBytes(header, data));
}

void TempCheckpoint::copy(const std::string& source) const {
  fs::copy(source, fs::path(path()) / fs::path(source).filename(), fs::copy_options::recursive);
}

void TempCheckpoint::remove(const std::string& name) const { REQUIRE(fs::remove_all(fs::path(path()) / name) > 0); }

std::string safetensorsBytes(const std::string& header, const std::string& data) {
  const uint64_t length = header.size();
  std::string bytes(sizeof(length), '\0');
  std::memcpy(bytes.data(), &length, sizeof(length));
  return bytes + header + data;
}

std::string readFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  REQUIRE(file.good());
  std::ostringstream read;
  read << file.rdbuf();
  return read.str();
}

std::string bytesOf(const std::vector<float>& values) {
  return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
}

}  // namespace latentd::stages::testing
