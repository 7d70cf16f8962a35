#include "stages/device/transfer.h"

#include <ATen/ops/empty.h>

namespace latentd::stages {

at::Tensor toDevice(const at::Tensor& tensor, at::Device device) {
  if (tensor.is_cpu() && device.is_cuda()) return tensor.pin_memory().to(device, /*non_blocking=*/true);
  return tensor.to(device, /*non_blocking=*/device.is_cuda());
}

at::Tensor toPinnedHost(const at::Tensor& tensor) {
  if (tensor.is_cpu()) return tensor;
  at::Tensor host = at::empty(tensor.sizes(), tensor.options().device(at::kCPU).pinned_memory(true));
  return host.copy_(tensor, /*non_blocking=*/true);
}

}  // namespace latentd::stages
