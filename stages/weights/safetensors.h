#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/dtype.h"
#include "runtime/base/status.h"

namespace latentd::stages {

// A safetensors file, mapped read only. Every byte of the header is validated at open: sizes, JSON, dtypes, shapes,
// offsets; tensors neither overlap nor leave holes. Shared, because tensors made from it keep the mapping alive.
// Owner: shared. Thread: any, immutable. Failure: open() names the file and, where one is to blame, the tensor. The
// file must not be truncated while mapped (the kernel would send SIGBUS).
class SafetensorsFile {
 public:
  struct Entry {
    DType dtype = DType::kInvalid;
    std::vector<int64_t> shape;
    uint64_t offset = 0;  // of the first byte, from the start of the data section
    uint64_t bytes = 0;
  };
  using Entries = std::map<std::string, Entry>;

  static StatusOr<std::shared_ptr<const SafetensorsFile>> open(const std::string& path);
  ~SafetensorsFile();
  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;

  const std::string& path() const { return path_; }
  const Entries& entries() const { return entries_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  const std::byte* data(const Entry& entry) const { return data_ + entry.offset; }

 private:
  SafetensorsFile() = default;

  Status map(const std::string& path);
  Status parseHeader();
  Status checkLayout() const;

  std::string path_;
  void* mapping_ = nullptr;
  size_t mapped_bytes_ = 0;
  const std::byte* data_ = nullptr;
  uint64_t data_bytes_ = 0;
  Entries entries_;
  std::map<std::string, std::string> metadata_;
};

}  // namespace latentd::stages
