#pragma once

#include <string>

#include <ATen/core/Tensor.h>

#include "stages/weights/checkpoint.h"

namespace latentd::stages {

// Where a layer gets its parameters from: a reader, the path of the layer in it, and what to make of the tensors.
// Layers return themselves empty where take() gives an undefined tensor: either the reader has failed, and its
// finish() says why, or the checkpoint is only checked.
// Owner: the model's load(). Thread: one. A value type; the reader must outlive it.
struct LayerLoader {
  WeightReader* reader = nullptr;
  at::ScalarType dtype = at::kFloat;
  at::Device device = at::kCPU;
  // Names and shapes are checked, nothing is loaded: for a part of a component that a stage does not run.
  bool check_only = false;
  std::string path;  // "decoder.mid_block.", with the dot

  LayerLoader child(const std::string& name) const {
    LayerLoader loader = *this;
    loader.path += name + ".";
    return loader;
  }
  // For the parameters that stay in float32 whatever the model computes in.
  LayerLoader inFloat32() const {
    LayerLoader loader = *this;
    loader.dtype = at::kFloat;
    return loader;
  }

  // For the parameters that another rank has.
  LayerLoader checkOnlyIf(bool elsewhere) const {
    LayerLoader loader = *this;
    loader.check_only = check_only || elsewhere;
    return loader;
  }

  // shape: of the whole tensor.
  at::Tensor take(const std::string& name, at::IntArrayRef shape, const WeightPart& part = {}) const {
    if (check_only) {
      reader->skip(path + name, shape);
      return {};
    }
    return reader->take(path + name, shape, dtype, device, part);
  }
};

}  // namespace latentd::stages
