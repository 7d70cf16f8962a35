#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/base/dtype.h"
#include "runtime/base/status.h"

namespace latentd::plan {

// A GPU as its data sheet says. Rates are those without sparsity, bandwidths in bytes a second and one direction.
struct Gpu {
  std::string_view name;
  double tensor_flops = 0;  // bfloat16 and float16
  double float_flops = 0;   // float32 without TF32, which latentd does not use
  double memory_bandwidth = 0;
  uint64_t memory_bytes = 0;
  double nvlink_bandwidth = 0;  // to all peers together; 0: has none
  double pcie_bandwidth = 0;
};

enum class Link { kNvlink, kPcie };
std::string_view toString(Link link);  // "nvlink", "pcie"

// What a plan is made for: equal GPUs, equal hosts.
struct Hardware {
  Gpu gpu;
  Link link = Link::kNvlink;
  uint64_t memory_bytes = 0;  // of each GPU
  uint32_t gpus_per_host = 8;

  double linkBandwidth() const { return link == Link::kNvlink ? gpu.nvlink_bandwidth : gpu.pcie_bandwidth; }
};

// "a100, b200, h100, h200, l40s"
std::string gpuNames();
// A link that is not given is the GPU's fastest. INVALID_ARGUMENT names what there is.
StatusOr<Hardware> findHardware(const std::string& gpu, const std::optional<std::string>& link);

// What of the data sheet is reached, in units a second.
struct Rates {
  double matmul_flops = 0;
  double attention_flops = 0;        // all keys at hand
  double block_attention_flops = 0;  // the kernel that tells its log-sum-exp, for blocks of keys that are merged
  double convolution_flops = 0;      // of the VAE, and what goes on between them
  double memory_bytes = 0;           // of kernels that do nothing but pass over activations
  double link_bytes = 0;
  double network_bytes = 0;       // between hosts, of each GPU
  double link_latency = 0;        // seconds that a collective takes however small
  double network_latency = 0;     // the same, between hosts
  double direct_bytes = 0;        // of direct writes between GPUs that NVLink joins
  double direct_latency = 0;      // seconds that a round of them takes however small
  double kernel_seconds = 0;      // of the host, to submit a kernel
  double collective_seconds = 0;  // of the host, to submit a collective
};
Rates ratesOf(const Hardware& hardware, DType dtype);

}  // namespace latentd::plan
