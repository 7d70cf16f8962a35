#include "stages/device/numerics.h"

#include <ATen/Context.h>
#include <ATen/SDPBackend.h>

#include <cstdint>
#include <vector>

namespace latentd::stages {
namespace {

std::vector<int64_t> order(std::initializer_list<at::SDPBackend> backends) {
  std::vector<int64_t> numbers;
  for (at::SDPBackend backend : backends)
    numbers.push_back(static_cast<int64_t>(backend));
  return numbers;
}

}  // namespace

void useReferenceNumerics(at::Device device, AttentionShapes shapes) {
  if (!device.is_cuda()) return;
  using at::SDPBackend;
  at::Context& context = at::globalContext();
  context.setAllowTF32CuBLAS(false);
  context.setAllowTF32CuDNN(false);
  // cuDNN's attention is 1.6 times as fast as flash attention 2 on an H200 and takes a tenth of a second to prepare for
  // each new shape. Only the last two know float32.
  context.setSDPPriorityOrder(shapes == AttentionShapes::kFew
                                  ? order({SDPBackend::cudnn_attention, SDPBackend::flash_attention,
                                           SDPBackend::efficient_attention, SDPBackend::math, SDPBackend::overrideable})
                                  : order({SDPBackend::flash_attention, SDPBackend::efficient_attention,
                                           SDPBackend::math, SDPBackend::cudnn_attention, SDPBackend::overrideable}));
}

}  // namespace latentd::stages
