#include "runtime/worker/tensor_convert.h"

#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>

#include <charconv>
#include <memory>
#include <string>
#include <utility>

#include "mesh/scalar_type.h"
#include "stages/token_video.h"

namespace latentd::worker {
namespace {

using channel::ArtifactTree;
using channel::Device;
using channel::DeviceType;
using channel::TensorView;
using stages::TensorTree;

// Of a TokenVideo's tensor.
constexpr uint32_t kTokenDim = 1;

at::Device torchDevice(const Device& device) {
  if (device.type == DeviceType::kCpu) return at::Device(at::kCPU);
  return at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(device.index));
}

// Tells an owner that is a tensor from any other.
struct TensorDeleter {
  void operator()(at::Tensor* tensor) const { delete tensor; }
};

// The tensor that the view was made of, if it is all of it: a received one, whose target torch allocated.
const at::Tensor* wholeOf(const TensorView& view) {
  if (std::get_deleter<TensorDeleter>(view.owner) == nullptr) return nullptr;
  const auto* tensor = static_cast<const at::Tensor*>(view.owner.get());
  const bool whole = tensor->data_ptr() == view.data && tensor->sizes() == view.shape &&
                     tensor->strides() == view.strides && toDType(tensor->scalar_type()) == view.dtype;
  return whole ? tensor : nullptr;
}

StatusOr<ArtifactTree> plainArtifact(const TensorTree& tree) {
  Status status;
  ArtifactTree artifact = tree.mapLeaves<TensorView>([&](const at::Tensor& tensor) {
    StatusOr<TensorView> view = toView(tensor);
    if (!view.ok() && status.ok()) status = view.status();
    return view.ok() ? std::move(view).value() : TensorView();
  });
  if (!status.ok()) return status;
  return artifact;
}

StatusOr<TensorTree> plainTree(const ArtifactTree& artifact) {
  Status status;
  TensorTree tree = artifact.mapLeaves<at::Tensor>([&](const TensorView& view) {
    StatusOr<at::Tensor> tensor = toTensor(view);
    if (!tensor.ok() && status.ok()) status = tensor.status();
    return tensor.ok() ? std::move(tensor).value() : at::Tensor();
  });
  if (!status.ok()) return status;
  return tree;
}

StatusOr<ArtifactTree> tokensToArtifact(const TensorTree& entry, const std::string& key) {
  LATENTD_ASSIGN_OR_RETURN(const stages::TokenVideo video, stages::tokenVideoOf(entry, key));
  channel::TokenPart part{kTokenDim, {video.grid.frames, video.grid.rows, video.grid.columns}, video.cut, {}};
  part.held = {video.begin, video.begin + video.tokens.size(kTokenDim) / video.unit()};
  LATENTD_ASSIGN_OR_RETURN(ArtifactTree artifact, plainArtifact(stages::withoutPart(entry)));
  return artifact.mapLeaves<TensorView>([&](TensorView view) {
    view.tokens = part;
    return view;
  });
}

// The part of an entry that arrived in token layout; null for others.
const channel::TokenPart* tokensOf(const ArtifactTree& entry) {
  const channel::TokenPart* part = nullptr;
  if (entry.getIf<ArtifactTree::Dict>() == nullptr) return part;
  entry.forEachLeaf([&](const TensorView& view) {
    if (view.tokens && view.tokens->dim == kTokenDim) part = &*view.tokens;
  });
  return part;
}

}  // namespace

StatusOr<TensorView> toView(const at::Tensor& tensor) {
  if (!tensor.defined()) return absl::InvalidArgumentError("an output tensor is undefined");
  const DType dtype = toDType(tensor.scalar_type());
  if (dtype == DType::kInvalid) {
    return absl::InvalidArgumentError(std::string("no edge carries tensors of ") + c10::toString(tensor.scalar_type()));
  }
  if (tensor.layout() != at::kStrided || !(tensor.is_cpu() || tensor.is_cuda())) {
    return absl::InvalidArgumentError("edges carry dense tensors on a CPU or CUDA device, not " + tensor.toString() +
                                      " on " + tensor.device().str());
  }
  TensorView view;
  view.dtype = dtype;
  view.shape = tensor.sizes().vec();
  view.strides = tensor.strides().vec();
  view.data = tensor.data_ptr();
  if (tensor.is_cuda()) view.device = {DeviceType::kCuda, static_cast<uint32_t>(tensor.get_device())};
  view.owner = std::shared_ptr<at::Tensor>(new at::Tensor(tensor), TensorDeleter());
  return view;
}

StatusOr<at::Tensor> toTensor(const TensorView& view) {
  if (const at::Tensor* whole = wholeOf(view)) return *whole;
  const at::ScalarType type = toScalarType(view.dtype);
  if (type == at::ScalarType::Undefined) return absl::InvalidArgumentError("a received tensor has no element type");
  const auto options = at::TensorOptions().dtype(type).device(torchDevice(view.device));
  // from_blob takes no null pointer, which an empty tensor may have.
  if (view.data == nullptr) return at::empty_strided(view.shape, view.strides, options);
  return at::from_blob(
      view.data, view.shape, view.strides, [owner = view.owner](void*) mutable { owner.reset(); }, options);
}

StatusOr<ArtifactTree> toArtifact(const TensorTree& tree) {
  const auto* dict = tree.getIf<TensorTree::Dict>();
  if (dict == nullptr) return plainArtifact(tree);
  ArtifactTree::Dict artifact;
  for (const auto& [key, entry] : dict->entries) {
    LATENTD_ASSIGN_OR_RETURN(ArtifactTree converted,
                             stages::isTokenVideo(entry) ? tokensToArtifact(entry, key) : plainArtifact(entry));
    artifact.entries.emplace_back(key, std::move(converted));
  }
  return ArtifactTree(std::move(artifact));
}

StatusOr<TensorTree> fromArtifact(const ArtifactTree& artifact) {
  const auto* dict = artifact.getIf<ArtifactTree::Dict>();
  if (dict == nullptr) return plainTree(artifact);
  TensorTree::Dict tree;
  for (const auto& [key, entry] : dict->entries) {
    LATENTD_ASSIGN_OR_RETURN(TensorTree converted, plainTree(entry));
    if (const channel::TokenPart* part = tokensOf(entry)) {
      const stages::VideoExtents grid{part->grid.frames, part->grid.rows, part->grid.columns};
      converted = stages::withPart(std::move(converted), grid, part->cut, part->held.begin);
    }
    tree.entries.emplace_back(key, std::move(converted));
  }
  return TensorTree(std::move(tree));
}

StatusOr<Device> parseDevice(const std::string& name) {
  constexpr std::string_view kCuda = "cuda:";
  if (name == "cpu") return Device{};
  if (name.starts_with(kCuda)) {
    uint32_t index = 0;
    const char* end = name.data() + name.size();
    const auto [stop, error] = std::from_chars(name.data() + kCuda.size(), end, index);
    if (error == std::errc() && stop == end) return Device{DeviceType::kCuda, index};
  }
  return absl::InvalidArgumentError("device \"" + name + "\" is neither \"cpu\" nor \"cuda:N\"");
}

}  // namespace latentd::worker
