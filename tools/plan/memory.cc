#include "tools/plan/memory.h"

#include <algorithm>
#include <cmath>

#include "tools/plan/denoiser_work.h"
#include "tools/plan/vae_work.h"

namespace latentd::plan {
namespace {

constexpr uint64_t kMiB = 1 << 20;
// Not measured here: CUDA's context with torch's kernels, and the workspaces of cuBLAS and cuDNN.
constexpr uint64_t kContextBytes = 800 * kMiB;
// Not measured here: channels and buffers of an NCCL communicator; each dimension above 1 has one.
constexpr uint64_t kCommunicatorBytes = 256 * kMiB;
// The forward pass of 32,760 tokens peaked at 4.3 GiB of tensors on an H200 (RESULTS.md), 2.65 of them weights and 0.09
// the text's keys and values. The rest is 1.19 times what activationBytes() counts.
constexpr double kActivationReserve = 1.2;
// A region that ranks share on GPUs has whole blocks of device memory (mesh/cuda_scatter_memory.cc).
constexpr uint64_t kDeviceBlock = 2 * kMiB;
// Slots of an edge unless its topology says otherwise.
constexpr uint64_t kSlots = 2;
// Tensors of a chunk's largest size that are alive at once in a residual block: the sum, the hidden one, and the padded
// inputs of both convolutions, half as large again for the frames in front.
constexpr double kDecoderTensors = 5;

uint64_t rounded(double bytes) { return static_cast<uint64_t>(std::llround(bytes)); }

uint64_t communicators(const Split& split) {
  uint64_t count = 0;
  for (const mesh::MeshDim dim : mesh::kMeshDims)
    count += dim != mesh::MeshDim::kDataParallel && split.degrees.of(dim) > 1 ? 1 : 0;
  return count;
}

// Bytes for each token of a rank, at the worse of two moments of a block.
double activationBytes(const Model& model, DType dtype, double tp) {
  const auto element = static_cast<double>(byteSize(dtype));
  const auto dim = static_cast<double>(model.transformer.dim());
  const auto ffn = static_cast<double>(model.transformer.ffn_dim);
  // The stream and its normed copy; then the hidden features before and after GELU.
  const double feed_forward = 2 * dim * element + 2 * ffn / tp * element;
  // The same two; query, key and value, both normed, both rotated (one of them in float32 on the way), and the result.
  const double attention =
      2 * dim * element + dim / tp * (8 * element + (dtype == DType::kFloat32 ? 0 : 2 * sizeof(float)));
  return std::max(feed_forward, attention);
}

// What ulysses holds beside the activations of the rank, of which `share` bytes are one of query, key and value.
double headBuffers(const Split& split, const RankShape& shape, double share) {
  // Of the all-to-all: query, key and value, sent and received; the result comes later and is smaller.
  if (!split.direct_heads) return 6 * share;
  // Targets of query, key and value stay, a set for each number of branches that a layer has: in a batched pass both
  // are one row until the text comes in. Beside them the result, sent and received. Jobs of another size would add
  // their sets, up to the four that are kept (mesh/direct_scatter.h).
  double targets = 0;
  for (int64_t branches = 1; branches <= shape.batch; ++branches) {
    const double region = 3 * share * static_cast<double>(branches) / static_cast<double>(shape.batch);
    targets += std::ceil(region / kDeviceBlock) * kDeviceBlock;
  }
  return targets + 2 * share;
}

}  // namespace

RankMemory denoiserMemory(const Model& model, const Job& job, const Split& split) {
  const TransformerParameters count = transformerParameters(model.transformer);
  const RankShape shape = rankShape(model, job, split);
  const auto element = static_cast<double>(byteSize(job.dtype));
  const auto dim = static_cast<double>(model.transformer.dim());
  const auto layers = static_cast<double>(shape.layers);
  const double tp = split.degrees.tp;
  const double rows = static_cast<double>(shape.batch * shape.tokens);

  RankMemory memory;
  memory.weights = rounded(
      layers * (static_cast<double>(count.layer_products) / tp + static_cast<double>(count.layer_rest)) * element +
      layers * static_cast<double>(count.layer_float32) * sizeof(float) + static_cast<double>(count.outside) * element +
      static_cast<double>(count.outside_float32) * sizeof(float));
  const double text = layers * static_cast<double>(shape.batch * shape.passes * kTextRows) * 2 * dim / tp * element;
  memory.activations = rounded(kActivationReserve * rows * activationBytes(model, job.dtype, tp) + text);

  double buffers = 0;
  if (split.degrees.ulysses > 1) buffers += headBuffers(split, shape, rows * dim / tp * element);
  if (split.degrees.ring > 1) {
    // Its own block and one of as many rows, or of all; a ring that turns keeps a partial result and one to merge.
    const double blocks = 1 + (split.ring_gathers ? split.degrees.ring : 1);
    buffers += blocks * 2 * rows * dim / tp * element;
    if (!split.ring_gathers) buffers += 3 * rows * dim / tp * sizeof(float);
  }
  memory.buffers = rounded(buffers);
  const stages::wan::LatentShape latents = latentShape(model, job);
  memory.pools = kSlots * static_cast<uint64_t>(latents.elements()) * sizeof(float);
  memory.process = kContextBytes + communicators(split) * kCommunicatorBytes;
  return memory;
}

RankMemory textMemory(const Model& model, const Job& job) {
  const uint64_t element = byteSize(job.dtype);
  const auto rows = static_cast<uint64_t>(kTextRows);
  RankMemory memory;
  memory.weights = textParameters(model.text) * element;
  // Hidden features of the gated feed-forward part, and scores of all heads, in float32 at worst.
  memory.activations = rows * static_cast<uint64_t>(2 * model.text.d_ff + 4 * model.text.d_model) * element +
                       2 * static_cast<uint64_t>(model.text.heads) * rows * rows * sizeof(float);
  memory.pools = kSlots * job.branches() * rows * static_cast<uint64_t>(model.text.d_model) * element;
  memory.process = kContextBytes;
  return memory;
}

RankMemory decoderMemory(const Model& model, const Job& job, uint32_t spatial) {
  const VaeWork work = vaeWork(model, job);
  const int64_t height = latentShape(model, job).height;
  // The tallest shard.
  const double share = static_cast<double>((height + spatial - 1) / spatial) / static_cast<double>(height);
  RankMemory memory;
  memory.weights = work.parameters * byteSize(job.dtype);
  memory.activations = rounded(
      share * (kDecoderTensors * static_cast<double>(work.largest_bytes) + static_cast<double>(work.cache_bytes)));
  memory.process = kContextBytes + (spatial > 1 ? kCommunicatorBytes : 0);
  // Frames as they go out, in the model's type and as float32 on the host.
  memory.buffers = spatial > 1 ? work.largest_bytes / static_cast<uint64_t>(height) * 2 : 0;
  return memory;
}

}  // namespace latentd::plan
