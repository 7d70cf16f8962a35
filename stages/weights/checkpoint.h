#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "runtime/base/status.h"
#include "stages/weights/safetensors.h"

namespace latentd::stages {

class DeviceUpload;

// A view of one entry, which keeps the file mapped; a copy where the file does not align it. Never write to it.
at::Tensor tensorOf(const std::shared_ptr<const SafetensorsFile>& file, const SafetensorsFile::Entry& entry);

// One of `parts` equal parts along a dimension: a rank's of a weight that is split over ranks.
struct WeightPart {
  int64_t dim = 0;
  int64_t parts = 1;
  int64_t part = 0;
};

// The weights of one component directory: diffusion_pytorch_model.safetensors, model.safetensors, or the shards named
// by the .index.json of either. Tensors are taken by name and checked; the first problem sticks, after which take()
// returns undefined tensors, and finish() tells it.
// Owner: the loading stage. Thread: one. States: open -> take()... -> finish(). Failure: sticky; names tensor and file.
class WeightReader {
 public:
  // fraction 0..1 of the bytes taken, and the file being read; called at most about 100 times.
  using Progress = std::function<void(double fraction, const std::string& detail)>;

  // check_only: take() checks and counts, and returns undefined tensors without reading any.
  static StatusOr<WeightReader> open(
      const std::string& directory, Progress progress = [](double, const std::string&) {}, bool check_only = false);

  WeightReader(WeightReader&&) noexcept;
  WeightReader& operator=(WeightReader&&) noexcept;
  ~WeightReader();

  bool has(const std::string& name) const { return sources_.contains(name); }
  // On a CPU a view into the mapping if the file stores `dtype`, else a converted copy; on a device a copy, see
  // DeviceUpload. Floating point only, unless the file stores exactly `dtype`. All tensors go to one device.
  // shape: of the whole tensor, divisible where a part of it is asked for; a part is contiguous, and all that is kept.
  at::Tensor take(const std::string& name, at::IntArrayRef shape, at::ScalarType dtype, at::Device device = at::kCPU,
                  const WeightPart& part = {});
  // Checks that the tensor is there with that shape, and counts it as taken, without loading it: for the part of a
  // model that a stage does not run.
  void skip(const std::string& name, at::IntArrayRef shape);
  // The first problem; else the tensors that nobody took. A name in `ignorable`, or one that ends in an entry of it
  // which begins with ".", is not an error.
  Status finish(const std::vector<std::string>& ignorable = {}) const;
  // Bytes of all the tensors returned, or that would have been, in their own dtypes.
  uint64_t takenBytes() const { return taken_bytes_; }

 private:
  struct Source {
    std::shared_ptr<const SafetensorsFile> file;
    const SafetensorsFile::Entry* entry;
  };

  WeightReader();
  Status addFile(const std::string& path);
  Status addShards(const std::string& directory, const std::string& index_path);
  // The source of a tensor of that shape; null after a problem.
  const Source* find(const std::string& name, at::IntArrayRef shape);
  void fail(const Status& problem);
  void report(const Source& source);
  at::Tensor read(const Source& source, at::ScalarType dtype, at::Device device, const WeightPart& part);

  std::string directory_;
  Progress progress_;
  bool check_only_ = false;
  std::map<std::string, Source> sources_;
  std::set<std::string> taken_;
  uint64_t file_bytes_ = 0;  // of all tensors, as stored
  uint64_t read_bytes_ = 0;  // of the tensors taken, as stored
  uint64_t taken_bytes_ = 0;
  double reported_ = 0;
  std::unique_ptr<DeviceUpload> upload_;  // made with the first tensor for a device
  Status problem_;
};

}  // namespace latentd::stages
