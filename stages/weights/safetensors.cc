#include "stages/weights/safetensors.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <utility>

#include "runtime/base/unique_fd.h"

namespace latentd::stages {
namespace {

using nlohmann::json;

// The format's own limit on its header.
constexpr uint64_t kHeaderBytesMax = 100'000'000;
constexpr size_t kLengthBytes = sizeof(uint64_t);

struct FormatDType {
  std::string_view name;
  DType dtype;
};
constexpr FormatDType kDTypes[] = {
    {"F32", DType::kFloat32}, {"F16", DType::kFloat16}, {"BF16", DType::kBFloat16}, {"F64", DType::kFloat64},
    {"I64", DType::kInt64},   {"I32", DType::kInt32},   {"U8", DType::kUInt8},      {"BOOL", DType::kBool},
};

Status damaged(const std::string& path, std::string_view what) {
  return absl::DataLossError(fmt::format("{}: {}; the file is damaged or incomplete, fetch it again", path, what));
}

StatusOr<DType> parseFormatDType(const std::string& path, const std::string& name, const json& value) {
  std::string known;
  for (const FormatDType& candidate : kDTypes) {
    if (value.is_string() && value.get_ref<const std::string&>() == candidate.name) return candidate.dtype;
    known += (known.empty() ? "" : ", ") + std::string(candidate.name);
  }
  return absl::UnimplementedError(fmt::format("{}: tensor \"{}\" has dtype {}, readable are: {}", path, name,
                                              value.dump(-1, ' ', true, json::error_handler_t::replace), known));
}

// Elements of a shape times the bytes of one; false on overflow.
bool multiply(const std::vector<int64_t>& shape, uint64_t element, uint64_t* bytes) {
  *bytes = element;
  for (int64_t size : shape) {
    if (__builtin_mul_overflow(*bytes, static_cast<uint64_t>(size), bytes)) return false;
  }
  return true;
}

bool isListOfSizes(const json& value) {
  return value.is_array() && std::all_of(value.begin(), value.end(), [](const json& item) {
           return item.is_number_unsigned() && item.get<uint64_t>() <= INT64_MAX;
         });
}

StatusOr<SafetensorsFile::Entry> parseEntry(const std::string& path, const std::string& name, const json& value,
                                            uint64_t data_bytes) {
  const auto bad = [&](std::string_view what) { return damaged(path, fmt::format("tensor \"{}\": {}", name, what)); };
  if (!value.is_object()) return bad("its header entry is no object");
  for (const char* key : {"dtype", "shape", "data_offsets"}) {
    if (!value.contains(key)) return bad(fmt::format("its header entry has no \"{}\"", key));
  }
  SafetensorsFile::Entry entry;
  LATENTD_ASSIGN_OR_RETURN(entry.dtype, parseFormatDType(path, name, value["dtype"]));
  if (!isListOfSizes(value["shape"])) return bad("its shape is no list of sizes");
  entry.shape = value["shape"].get<std::vector<int64_t>>();
  const json& offsets = value["data_offsets"];
  if (!isListOfSizes(offsets) || offsets.size() != 2) return bad("its data_offsets are no pair of offsets");
  const uint64_t begin = offsets[0].get<uint64_t>();
  const uint64_t end = offsets[1].get<uint64_t>();
  if (begin > end || end > data_bytes) {
    return bad(fmt::format("bytes {} to {} lie outside the {} data bytes of the file", begin, end, data_bytes));
  }
  uint64_t expected = 0;
  if (!multiply(entry.shape, byteSize(entry.dtype), &expected) || expected != end - begin) {
    return bad(fmt::format("its shape [{}] of {} does not fill its {} bytes", fmt::join(entry.shape, ", "),
                           latentd::toString(entry.dtype), end - begin));
  }
  entry.offset = begin;
  entry.bytes = end - begin;
  return entry;
}

}  // namespace

StatusOr<std::shared_ptr<const SafetensorsFile>> SafetensorsFile::open(const std::string& path) {
  std::shared_ptr<SafetensorsFile> file(new SafetensorsFile());
  LATENTD_RETURN_IF_ERROR(file->map(path));
  LATENTD_RETURN_IF_ERROR(file->parseHeader());
  LATENTD_RETURN_IF_ERROR(file->checkLayout());
  return std::shared_ptr<const SafetensorsFile>(std::move(file));
}

SafetensorsFile::~SafetensorsFile() {
  if (mapping_ != nullptr) ::munmap(mapping_, mapped_bytes_);
}

Status SafetensorsFile::map(const std::string& path) {
  path_ = path;
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return errnoStatus(errno, "cannot open " + path);
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) return errnoStatus(errno, "cannot stat " + path);
  if (!S_ISREG(status.st_mode)) return absl::InvalidArgumentError(path + ": not a regular file");
  if (static_cast<uint64_t>(status.st_size) < kLengthBytes) {
    return damaged(path, fmt::format("{} bytes are too few for a safetensors file", status.st_size));
  }
  mapped_bytes_ = static_cast<size_t>(status.st_size);
  void* mapping = ::mmap(nullptr, mapped_bytes_, PROT_READ, MAP_PRIVATE, fd.get(), 0);
  if (mapping == MAP_FAILED) return errnoStatus(errno, "cannot map " + path);
  mapping_ = mapping;
  return absl::OkStatus();
}

Status SafetensorsFile::parseHeader() {
  const auto* bytes = static_cast<const std::byte*>(mapping_);
  uint64_t header_bytes = 0;  // little endian, as are the machines this runs on
  std::memcpy(&header_bytes, bytes, kLengthBytes);
  if (header_bytes > kHeaderBytesMax || header_bytes > mapped_bytes_ - kLengthBytes) {
    return damaged(path_, fmt::format("header length {} exceeds the file ({} bytes)", header_bytes, mapped_bytes_));
  }
  data_ = bytes + kLengthBytes + header_bytes;
  data_bytes_ = mapped_bytes_ - kLengthBytes - header_bytes;

  const char* text = reinterpret_cast<const char*>(bytes + kLengthBytes);
  std::set<std::string> seen;
  std::string repeated;
  json header;
  try {
    header = json::parse(text, text + header_bytes, [&](int depth, json::parse_event_t event, json& parsed) {
      if (depth == 1 && event == json::parse_event_t::key && !seen.insert(parsed.get<std::string>()).second) {
        repeated = parsed.get<std::string>();
      }
      return true;
    });
  } catch (const json::exception& error) {
    return damaged(path_, fmt::format("the header is not valid JSON ({})", error.what()));
  }
  if (!header.is_object()) return damaged(path_, "the header is no JSON object");
  if (!repeated.empty()) return damaged(path_, fmt::format("tensor \"{}\" appears twice in the header", repeated));
  for (const auto& [name, value] : header.items()) {
    if (name == "__metadata__") {
      if (!value.is_object()) return damaged(path_, "__metadata__ is no object");
      for (const auto& [key, entry] : value.items()) {
        if (!entry.is_string()) return damaged(path_, fmt::format("__metadata__ \"{}\" is no string", key));
        metadata_[key] = entry.get<std::string>();
      }
      continue;
    }
    LATENTD_ASSIGN_OR_RETURN(entries_[name], parseEntry(path_, name, value, data_bytes_));
  }
  return absl::OkStatus();
}

Status SafetensorsFile::checkLayout() const {
  std::vector<Entries::const_iterator> ordered;
  for (auto entry = entries_.begin(); entry != entries_.end(); ++entry)
    ordered.push_back(entry);
  std::sort(ordered.begin(), ordered.end(), [](const auto& a, const auto& b) {
    return std::pair(a->second.offset, a->second.bytes) < std::pair(b->second.offset, b->second.bytes);
  });
  uint64_t end = 0;
  for (const auto& entry : ordered) {
    if (entry->second.offset != end) {
      return damaged(path_, fmt::format("tensor \"{}\" begins at byte {} but the tensors before it end at byte {}",
                                        entry->first, entry->second.offset, end));
    }
    end += entry->second.bytes;
  }
  if (end != data_bytes_) {
    return damaged(path_, fmt::format("its tensors end at byte {} of {} data bytes", end, data_bytes_));
  }
  return absl::OkStatus();
}

}  // namespace latentd::stages
