#include "tools/plan/hardware.h"

#include <fmt/format.h>

#include <array>
#include <cstddef>

namespace latentd::plan {
namespace {

constexpr double kTera = 1e12;
constexpr double kGiga = 1e9;
constexpr uint64_t kGigabyte = 1'000'000'000;

// Published rates (NVIDIA's data sheets of the SXM modules and of the L40S, as of 2026-11). Their figures "with
// sparsity" are halved, NVLink's and PCIe's "bidirectional" too. Capacity in the sheet's 10^9 bytes; drivers show a few
// percent more, which stays as reserve.
constexpr std::array kGpus{
    // PCIe 4.0 x16 has 31.5 GB/s each way, 5.0 twice that. NVLink 3 has 12 links of 25 GB/s, NVLink 4 has 18.
    Gpu{"a100", 312 * kTera, 19.5 * kTera, 2.039 * kTera, 80 * kGigabyte, 300 * kGiga, 31.5 * kGiga},
    // NVLink 5: 18 links of 50 GB/s. The HGX module's 2.25 PFLOP/s.
    Gpu{"b200", 2250 * kTera, 75 * kTera, 8 * kTera, 180 * kGigabyte, 900 * kGiga, 63 * kGiga},
    Gpu{"h100", 989.4 * kTera, 66.9 * kTera, 3.35 * kTera, 80 * kGigabyte, 450 * kGiga, 63 * kGiga},
    Gpu{"h200", 989.4 * kTera, 66.9 * kTera, 4.8 * kTera, 141 * kGigabyte, 450 * kGiga, 63 * kGiga},
    Gpu{"l40s", 362 * kTera, 91.6 * kTera, 0.864 * kTera, 48 * kGigabyte, 0, 31.5 * kGiga},
};

// ---- shares of the data sheet that are reached ------------------------------------------------------------------
// Measured on an H200 (torch 2.11, bfloat16), 2026-11. Other GPUs and float32 are taken to reach the same shares of
// their own peaks: nothing was measured there.
//
// The forward pass of Wan 2.1 1.3B with 32,760 tokens takes 599-602 ms (RESULTS.md, "Stages on a GPU"). Of it 104 ms
// are products (81.9 TFLOP) and 332 ms attention, that to the text included (200.9 TFLOP); profile of the same
// operators in the reference.
constexpr double kMatmulShare = 81.9 / 0.104 / 989.4;
constexpr double kAttentionShare = 200.9 / 0.332 / 989.4;
// Flash attention 2 where cuDNN's attention reaches 587 TFLOP/s, the same sizes.
constexpr double kBlockAttentionShare = kAttentionShare * 356 / 587;
// The rest of these 600 ms, 388 GB by DenoiserWork's account: the one share that the measured step itself has set.
constexpr double kMemoryShare = 388.5 / (0.6005 - 0.104 - 0.332) / 4800;
// VAE decode of 81 frames 480x832, 1.05-1.06 s best of several (RESULTS.md): 262.7 TFLOP by VaeWork.
constexpr double kConvolutionShare = 262.7 / 1.055 / 989.4;
// NCCL all-to-all of 25, 84 and 194 MB between two H200 with NVLink 4: 0.160, 0.399 and 0.783 ms, which is
// 0.067 ms + bytes / (270 GB/s) within 6 %. All-reduce: 4 KiB 0.085 ms, 128 MiB 0.576 ms, the same 273 GB/s.
constexpr double kLinkShare = 270.0 / 450;
constexpr double kLinkLatency = 75e-6;
// Direct writes of the heads of query, key and value in one round, two H200 with NVLink 4, 75, 252 and 581 MB: 0.344,
// 1.001 and 2.223 ms, which is 0.065 ms + bytes / (269 GB/s) within 1 % (RESULTS.md, "Heads between ranks"). They leave
// out the packing, which the all-to-all needs: of NCCL's rounds, with it, they take 0.73.
constexpr double kDirectShare = 269.0 / 450;
constexpr double kDirectLatency = 65e-6;
// Not measured: PCIe reaches 50 of 63 GB/s with large copies.
constexpr double kPcieShare = 0.8;
// Not measured: 400 Gb/s for each GPU, of which collectives reach nine tenths, and a round trip through two adapters.
constexpr double kNetworkBytes = 50 * kGiga * 0.9;
constexpr double kNetworkLatency = 150e-6;
// The forward pass of 1,950 tokens is bound by the host: 20-27 ms on two machines for the 1,470 kernels that
// DenoiserWork counts. The views and checks between the kernels are in it.
constexpr double kKernelSeconds = 23.5e-3 / 1470;
// Not measured apart: a collective of c10d costs its host about two kernels.
constexpr double kCollectiveSeconds = 2 * kKernelSeconds;

}  // namespace

std::string_view toString(Link link) { return link == Link::kNvlink ? "nvlink" : "pcie"; }

std::string gpuNames() {
  std::string names;
  for (const Gpu& gpu : kGpus)
    names += (names.empty() ? "" : ", ") + std::string(gpu.name);
  return names;
}

StatusOr<Hardware> findHardware(const std::string& gpu, const std::optional<std::string>& link) {
  for (const Gpu& known : kGpus) {
    if (known.name != gpu) continue;
    Hardware hardware{.gpu = known, .memory_bytes = known.memory_bytes};
    if (known.nvlink_bandwidth == 0) hardware.link = Link::kPcie;
    if (!link) return hardware;
    if (*link == "nvlink" && known.nvlink_bandwidth == 0) {
      return absl::InvalidArgumentError(fmt::format("--link: '{}' has no NVLink; expected pcie", gpu));
    }
    if (*link != "nvlink" && *link != "pcie") {
      return absl::InvalidArgumentError(fmt::format("--link: '{}', expected nvlink or pcie", *link));
    }
    hardware.link = *link == "nvlink" ? Link::kNvlink : Link::kPcie;
    return hardware;
  }
  return absl::InvalidArgumentError(fmt::format("--gpu: '{}' is not known, expected one of {}", gpu, gpuNames()));
}

Rates ratesOf(const Hardware& hardware, DType dtype) {
  const Gpu& gpu = hardware.gpu;
  const double peak = dtype == DType::kFloat32 ? gpu.float_flops : gpu.tensor_flops;
  return {.matmul_flops = peak * kMatmulShare,
          .attention_flops = peak * kAttentionShare,
          .block_attention_flops = peak * kBlockAttentionShare,
          .convolution_flops = peak * kConvolutionShare,
          .memory_bytes = gpu.memory_bandwidth * kMemoryShare,
          .link_bytes = hardware.linkBandwidth() * (hardware.link == Link::kNvlink ? kLinkShare : kPcieShare),
          .network_bytes = kNetworkBytes,
          .link_latency = kLinkLatency,
          .network_latency = kNetworkLatency,
          .direct_bytes = hardware.gpu.nvlink_bandwidth * kDirectShare,
          .direct_latency = kDirectLatency,
          .kernel_seconds = kKernelSeconds,
          .collective_seconds = kCollectiveSeconds};
}

}  // namespace latentd::plan
