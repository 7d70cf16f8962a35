#include "stages/stage_checks.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <optional>
#include <vector>

#include "stages/scalar_type.h"

namespace latentd::stages {

StatusOr<ComputeTarget> computeTarget(const LoadContext& context) {
  ComputeTarget target;
  try {
    target.device = at::Device(context.device);
  } catch (const c10::Error& error) {
    return absl::InvalidArgumentError(fmt::format("device \"{}\": {}; expected \"cpu\" or \"cuda:N\"", context.device,
                                                  error.what_without_backtrace()));
  }
  target.dtype = toScalarType(context.dtype);
  if (target.dtype != at::kFloat && target.dtype != at::kBFloat16 && target.dtype != at::kHalf) {
    return absl::InvalidArgumentError(
        fmt::format("dtype {}: models compute in float32, bfloat16 or float16", latentd::toString(context.dtype)));
  }
  return target;
}

Status checkComponentClass(ModelConfig& index, std::string_view component, std::string_view class_name) {
  const std::optional<std::string> found = index.componentClass(component);
  LATENTD_RETURN_IF_ERROR(index.status());
  if (found == class_name) return absl::OkStatus();
  return absl::FailedPreconditionError(fmt::format("{}: {} is {}, this stage serves {} only", index.path(), component,
                                                   found.value_or("absent"), class_name));
}

Status unknownMethod(const Stage& stage, const std::string& method) {
  std::vector<std::string> names;
  for (const MethodSpec& spec : stage.methods())
    names.push_back(spec.name);
  return absl::InvalidArgumentError(
      fmt::format("method \"{}\" is unknown; expected {}", method, fmt::join(names, ", ")));
}

}  // namespace latentd::stages
