#include "stages/stage_checks.h"

#include <c10/cuda/CUDAFunctions.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "mesh/scalar_type.h"
#include "runtime/base/status_field.h"

namespace latentd::stages {

StatusOr<at::Device> computeDevice(const LoadContext& context) {
  std::optional<at::Device> device;
  try {
    device.emplace(context.device);
  } catch (const c10::Error&) {
    // What it is not is told below.
  }
  if (!device || !(device->is_cpu() || (device->is_cuda() && device->has_index()))) {
    return atField(absl::InvalidArgumentError(
                       fmt::format("device \"{}\" is none; expected \"cpu\" or \"cuda:N\"", context.device)),
                   "devices");
  }
  if (context.check_only) return at::Device(at::kCPU);
  if (device->is_cuda() && device->index() >= c10::cuda::device_count()) {
    return atField(absl::FailedPreconditionError(
                       fmt::format("device \"{}\": this process sees {} CUDA devices (driver, CUDA_VISIBLE_DEVICES)",
                                   context.device, c10::cuda::device_count())),
                   "devices");
  }
  return *device;
}

StatusOr<ComputeTarget> computeTarget(const LoadContext& context) {
  if (context.model_dir.empty()) {
    return atField(absl::InvalidArgumentError("this stage needs a checkpoint: give a diffusers directory"), "model");
  }
  ComputeTarget target;
  LATENTD_ASSIGN_OR_RETURN(target.device, computeDevice(context));
  target.dtype = toScalarType(context.dtype);
  if (target.dtype != at::kFloat && target.dtype != at::kBFloat16 && target.dtype != at::kHalf) {
    return atField(absl::InvalidArgumentError(fmt::format("dtype {}: models compute in float32, bfloat16 or float16",
                                                          latentd::toString(context.dtype))),
                   "dtype");
  }
  return target;
}

Status refuseDegree(mesh::MeshDim dim, uint32_t degree, const std::string& why) {
  const std::string field = fmt::format("parallel.{}", mesh::toString(dim));
  return atField(absl::InvalidArgumentError(fmt::format("{} = {}: {}", field, degree, why)), field);
}

Status checkDegrees(const LoadContext& context, std::string_view stage, std::initializer_list<mesh::MeshDim> usable) {
  for (const mesh::MeshDim dim : mesh::kMeshDims) {
    const uint32_t degree = context.degrees.of(dim);
    if (degree == 1 || std::find(usable.begin(), usable.end(), dim) != usable.end()) continue;
    std::vector<std::string_view> names;
    for (const mesh::MeshDim other : usable)
      names.push_back(mesh::toString(other));
    return refuseDegree(
        dim, degree,
        fmt::format("{} can share no work along it, expected 1; {}", stage,
                    names.empty() ? "it runs on one rank" : fmt::format("it uses {}", fmt::join(names, ", "))));
  }
  return absl::OkStatus();
}

Status unknownMethod(const Stage& stage, const std::string& method) {
  std::vector<std::string> names;
  for (const MethodSpec& spec : stage.methods())
    names.push_back(spec.name);
  return absl::InvalidArgumentError(
      fmt::format("method \"{}\" is unknown; expected {}", method, fmt::join(names, ", ")));
}

}  // namespace latentd::stages
