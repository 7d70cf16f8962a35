#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

#include <ATen/core/Tensor.h>

#include "mesh/device_mesh.h"
#include "runtime/base/status.h"
#include "stages/stage.h"

// What every model stage checks the same way.
namespace latentd::stages {

// Where and in what a stage computes.
struct ComputeTarget {
  at::Device device = at::kCPU;
  at::ScalarType dtype = at::kFloat;
};

// INVALID_ARGUMENT, with its field, for a device that is none; FAILED_PRECONDITION for one that this process does not
// see. Where nothing is loaded (check_only) the CPU, as the device may be another machine's.
StatusOr<at::Device> computeDevice(const LoadContext& context);

// computeDevice(), and INVALID_ARGUMENT, with its field, for a dtype that is not float32, bfloat16 or float16, or no
// model directory.
StatusOr<ComputeTarget> computeTarget(const LoadContext& context);

// INVALID_ARGUMENT, with its field ("parallel.pp"), for a degree above 1 along a dimension that is not in `usable`:
// ranks that would only repeat each other's work are refused, not kept busy.
Status checkDegrees(const LoadContext& context, std::string_view stage, std::initializer_list<mesh::MeshDim> usable);

// INVALID_ARGUMENT, with its field: "parallel.tp = 3: WHY".
Status refuseDegree(mesh::MeshDim dim, uint32_t degree, const std::string& why);

// INVALID_ARGUMENT that names the methods of the stage.
Status unknownMethod(const Stage& stage, const std::string& method);

}  // namespace latentd::stages
