#pragma once

#include <ATen/core/Tensor.h>

namespace latentd::stages {

// Of the attention that a model computes, as far as it decides which kernel is best.
enum class AttentionShapes {
  kFew,   // the same few shapes over and over: kernels that are compiled for a shape pay
  kMany,  // every job another length
};

// Makes torch compute on a device as the reference is compared: float32 without TF32, and attention by kernels that are
// chosen by type and shape alone, fastest first. These are settings of the process, which runs one stage; models set
// them when they are loaded. No effect for a CPU.
void useReferenceNumerics(at::Device device, AttentionShapes shapes);

}  // namespace latentd::stages
