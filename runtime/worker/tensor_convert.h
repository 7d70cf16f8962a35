#pragma once

#include "channel/tensor_view.h"
#include "runtime/base/status.h"
#include "stages/stage.h"

// Tensors of stages as views of the data plane and back, without a copy: each side keeps the other's storage alive.
namespace latentd::worker {

// An entry of the outputs' dictionary that is a video in token layout (stages/token_video.h) becomes a leaf that knows
// its part of the grid, so that the data plane can cut it, and an entry again where it arrives. INVALID_ARGUMENT for
// what no edge carries: sparse or undefined tensors, complex or quantised elements, tokens that are no part of their
// grid.
StatusOr<channel::ArtifactTree> toArtifact(const stages::TensorTree& tree);
StatusOr<stages::TensorTree> fromArtifact(const channel::ArtifactTree& artifact);

StatusOr<channel::TensorView> toView(const at::Tensor& tensor);
// The view must own its storage.
StatusOr<at::Tensor> toTensor(const channel::TensorView& view);

// "cpu" or "cuda:N". INVALID_ARGUMENT for anything else.
StatusOr<channel::Device> parseDevice(const std::string& name);

}  // namespace latentd::worker
