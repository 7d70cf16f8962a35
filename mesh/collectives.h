#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "mesh/process_group.h"

// Collectives with their buffers. Every rank of the group calls the same in the same order, with equal shapes and
// types. Thread: the executor's. Failure: throws CommunicationError. A group of one rank copies nothing.
namespace latentd::mesh {

// local: [D0, ...]. Returns [size, D0, ...], one contiguous buffer, rank-major.
at::Tensor allGatherStacked(ProcessGroup& group, const at::Tensor& local);

// Concatenated along `dim` in rank order.
at::Tensor allGatherCat(ProcessGroup& group, const at::Tensor& local, int64_t dim);

// In place; all are submitted before any is waited for.
void allReduceSum_(ProcessGroup& group, const std::vector<at::Tensor>& tensors);

// One integer of each rank, by rank: for agreements off the steady path.
std::vector<int64_t> allGatherInt(ProcessGroup& group, int64_t value, at::Device device);

}  // namespace latentd::mesh
