#include "stages/weights/checkpoint.h"

#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <exception>
#include <filesystem>
#include <utility>

#include "mesh/scalar_type.h"
#include "stages/weights/device_upload.h"
#include "stages/weights/model_config.h"

namespace latentd::stages {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kFileNames[] = {"diffusion_pytorch_model.safetensors", "model.safetensors"};
// Progress goes to people: a hundredth is the finest they can use.
constexpr double kProgressStep = 0.01;
// How many tensor names an error message lists.
constexpr size_t kNamesMax = 5;

bool isPlainFileName(const std::string& name) { return !name.empty() && fs::path(name).filename() == name; }

StatusOr<std::map<std::string, std::string>> readWeightMap(const std::string& path) {
  LATENTD_ASSIGN_OR_RETURN(ModelConfig index, ModelConfig::read(path));
  auto files = index.texts("weight_map");
  LATENTD_RETURN_IF_ERROR(index.status());
  for (const auto& [name, file] : files) {
    if (!isPlainFileName(file)) {
      return absl::InvalidArgumentError(
          fmt::format("{}: weight_map of \"{}\" is \"{}\", expected a file name without folders", path, name, file));
    }
  }
  return files;
}

std::string listed(const std::vector<std::string>& names) {
  const size_t shown = std::min(names.size(), kNamesMax);
  std::string text = fmt::format("{}", fmt::join(names.begin(), names.begin() + shown, ", "));
  if (names.size() > shown) text += fmt::format(" and {} more", names.size() - shown);
  return text;
}

bool isIgnorable(const std::string& name, const std::vector<std::string>& ignorable) {
  return std::any_of(ignorable.begin(), ignorable.end(), [&](const std::string& pattern) {
    return name == pattern || (pattern.starts_with(".") && name.ends_with(pattern));
  });
}

}  // namespace

at::Tensor tensorOf(const std::shared_ptr<const SafetensorsFile>& file, const SafetensorsFile::Entry& entry) {
  // from_blob wants a mutable pointer; the pages are mapped read only, and weights are never written.
  void* data = const_cast<std::byte*>(file->data(entry));
  const auto options = at::TensorOptions().dtype(toScalarType(entry.dtype));
  if (reinterpret_cast<uintptr_t>(data) % byteSize(entry.dtype) == 0) {
    return at::from_blob(
        data, entry.shape, [file](void*) {}, options);
  }
  // The format does not promise alignment, torch's kernels need it.
  at::Tensor copy = at::from_blob(data, {static_cast<int64_t>(entry.bytes)}, at::kByte).clone();
  return copy.view(toScalarType(entry.dtype)).view(entry.shape);
}

WeightReader::WeightReader() = default;
WeightReader::WeightReader(WeightReader&&) noexcept = default;
WeightReader& WeightReader::operator=(WeightReader&&) noexcept = default;
WeightReader::~WeightReader() = default;

StatusOr<WeightReader> WeightReader::open(const std::string& directory, Progress progress, bool check_only) {
  WeightReader reader;
  reader.directory_ = directory;
  reader.progress_ = std::move(progress);
  reader.check_only_ = check_only;
  std::error_code ignored;
  for (std::string_view name : kFileNames) {
    const std::string path = directory + "/" + std::string(name);
    const std::string index_path = path + ".index.json";
    if (fs::exists(index_path, ignored)) {
      LATENTD_RETURN_IF_ERROR(reader.addShards(directory, index_path));
      return reader;
    }
    if (fs::exists(path, ignored)) {
      LATENTD_RETURN_IF_ERROR(reader.addFile(path));
      return reader;
    }
  }
  return absl::NotFoundError(
      fmt::format("{}: no weights; expected {}, or the .index.json of one of them (other "
                  "formats, such as .bin, are not read)",
                  directory, fmt::join(kFileNames, " or ")));
}

Status WeightReader::addFile(const std::string& path) {
  LATENTD_ASSIGN_OR_RETURN(const auto file, SafetensorsFile::open(path));
  for (const auto& [name, entry] : file->entries()) {
    const auto [found, added] = sources_.emplace(name, Source{file, &entry});
    if (!added) {
      return absl::DataLossError(
          fmt::format("tensor \"{}\" is in {} and in {}", name, found->second.file->path(), path));
    }
    file_bytes_ += entry.bytes;
  }
  return absl::OkStatus();
}

Status WeightReader::addShards(const std::string& directory, const std::string& index_path) {
  LATENTD_ASSIGN_OR_RETURN(const auto weight_map, readWeightMap(index_path));
  std::set<std::string> shards;
  for (const auto& [name, shard] : weight_map)
    shards.insert(shard);
  for (const std::string& shard : shards) {
    if (Status status = addFile(directory + "/" + shard); !status.ok()) {
      return annotate(status, "shard named by " + index_path);
    }
  }
  for (const auto& [name, shard] : weight_map) {
    const auto source = sources_.find(name);
    if (source == sources_.end() || source->second.file->path() != directory + "/" + shard) {
      return absl::DataLossError(
          fmt::format("{}: tensor \"{}\" is not in {}, where {} says it is", directory, name, shard, index_path));
    }
  }
  for (const auto& [name, source] : sources_) {
    if (!weight_map.contains(name)) {
      return absl::DataLossError(
          fmt::format("{}: tensor \"{}\" is not named by {}", source.file->path(), name, index_path));
    }
  }
  return absl::OkStatus();
}

void WeightReader::fail(const Status& problem) {
  if (problem_.ok()) problem_ = problem;
}

void WeightReader::report(const Source& source) {
  read_bytes_ += source.entry->bytes;
  const double fraction = file_bytes_ == 0 ? 1.0 : static_cast<double>(read_bytes_) / static_cast<double>(file_bytes_);
  if (fraction - reported_ < kProgressStep && fraction < 1.0) return;
  reported_ = fraction;
  progress_(std::min(fraction, 1.0), source.file->path());
}

const WeightReader::Source* WeightReader::find(const std::string& name, at::IntArrayRef shape) {
  if (!problem_.ok()) return nullptr;
  const auto found = sources_.find(name);
  if (found == sources_.end()) {
    fail(absl::DataLossError(
        fmt::format("{}: tensor \"{}\" with shape [{}] is missing", directory_, name, fmt::join(shape, ", "))));
    return nullptr;
  }
  const Source& source = found->second;
  const SafetensorsFile::Entry& entry = *source.entry;
  if (at::IntArrayRef(entry.shape) != shape) {
    fail(absl::DataLossError(fmt::format("{}: tensor \"{}\" has shape [{}], its configuration asks for [{}]",
                                         source.file->path(), name, fmt::join(entry.shape, ", "),
                                         fmt::join(shape, ", "))));
    return nullptr;
  }
  if (taken_.insert(name).second) report(source);
  return &source;
}

void WeightReader::skip(const std::string& name, at::IntArrayRef shape) { find(name, shape); }

at::Tensor WeightReader::read(const Source& source, at::ScalarType dtype, at::Device device, const WeightPart& part) {
  const SafetensorsFile::Entry& entry = *source.entry;
  at::Tensor stored = tensorOf(source.file, entry);
  if (part.parts > 1) {
    const int64_t length = stored.size(part.dim) / part.parts;
    stored = stored.narrow(part.dim, part.part * length, length).contiguous();
  }
  if (!device.is_cuda()) return stored.to(dtype);
  if (upload_ == nullptr) upload_ = std::make_unique<DeviceUpload>(device);
  return upload_->upload(static_cast<const std::byte*>(stored.const_data_ptr()), stored.sizes(), stored.scalar_type(),
                         dtype);
}

at::Tensor WeightReader::take(const std::string& name, at::IntArrayRef shape, at::ScalarType dtype, at::Device device,
                              const WeightPart& part) {
  const Source* found = find(name, shape);
  if (found == nullptr) return {};
  const Source& source = *found;
  const SafetensorsFile::Entry& entry = *source.entry;
  const at::ScalarType stored = toScalarType(entry.dtype);
  if (stored != dtype && !(at::isFloatingType(stored) && at::isFloatingType(dtype))) {
    fail(absl::DataLossError(fmt::format("{}: tensor \"{}\" has dtype {}, expected {}", source.file->path(), name,
                                         latentd::toString(entry.dtype), latentd::toString(toDType(dtype)))));
    return {};
  }
  if (check_only_) {
    taken_bytes_ += entry.bytes / byteSize(entry.dtype) * c10::elementSize(dtype) / part.parts;
    return {};
  }
  at::Tensor tensor;
  try {
    tensor = read(source, dtype, device, part);
  } catch (const c10::AcceleratorError&) {
    throw;  // not for want of memory: the device is lost, which is more than a failed load
  } catch (const std::exception& error) {
    fail(absl::ResourceExhaustedError(
        fmt::format("{}: tensor \"{}\" cannot be loaded: {}", source.file->path(), name, error.what())));
    return {};
  }
  taken_bytes_ += tensor.nbytes();
  return tensor;
}

Status WeightReader::finish(const std::vector<std::string>& ignorable) const {
  LATENTD_RETURN_IF_ERROR(problem_);
  std::vector<std::string> extra;
  for (const auto& [name, source] : sources_) {
    if (!taken_.contains(name) && !isIgnorable(name, ignorable)) {
      extra.push_back(fmt::format("\"{}\" ({})", name, source.file->path()));
    }
  }
  if (extra.empty()) return absl::OkStatus();
  return absl::DataLossError(
      fmt::format("{}: tensors that this model does not have: {}; is config.json that of these weights?", directory_,
                  listed(extra)));
}

}  // namespace latentd::stages
