#include "tools/plan/denoiser_work.h"

#include <algorithm>

namespace latentd::plan {
namespace {

constexpr double kMultiplyAdd = 2;
// Sums over the ranks of tensor parallelism in a layer: three of activations, two of norms (query and key together).
constexpr int kTensorParallelReductions = 5;
// Of ulysses in a layer: query, key and value are scattered, the result is gathered.
constexpr double kHeadTransfers = 4;

constexpr int64_t ceilDivide(int64_t value, int64_t divisor) { return (value + divisor - 1) / divisor; }

// Bytes that one block reads and writes for each feature of each token outside products and attention, by walking the
// operators of stages/wan/transformer_block.cc: "r w" of each, in bytes of its type.
struct PassBytes {
  double whole = 0;         // on every rank of tensor parallelism
  double heads = 0;         // of the rank's heads, norms apart
  double norms = 0;         // of queries and keys
  double feed_forward = 0;  // for each hidden feature
  double kernels = 0;       // of a block, products and attention included
};

PassBytes passBytes(const stages::wan::TransformerConfig& config, DType dtype) {
  const bool is_affine = config.cross_attn_norm;
  if (dtype == DType::kFloat32) {
    // Norms 4+4 each, two gated sums (4+4, 8+4), the sum 8+4; rms norms 4+4, twice with a copy of a slice before it;
    // rotations in place 4+4; GELU 4+4.
    return {.whole = 2 * 8 + 2 * 20 + (is_affine ? 8.0 : 0.0) + 12,
            .heads = 2 * 8,
            .norms = 2 * 16 + 8,
            .feed_forward = 8,
            .kernels = is_affine ? 27.0 : 26.0};
  }
  // Modulated norms: to float32 2+4, norm 4+4, scale 4+4, shift 4+4, back 4+2. Gated sums: two to float32 2+4, gate
  // 4+4, sum 8+4, back 4+2. Affine norm: 2+4, 4+4, 4+2. Sum 4+2. Norms of queries and keys 2+2, twice with a copy of a
  // slice before it. Rotations: to float32 2+4, product 4+4, back 4+2. GELU 2+2.
  return {.whole = 2 * 36 + 2 * 38 + (is_affine ? 20.0 : 0.0) + 6,
          .heads = 2 * 20,
          .norms = 2 * 8 + 4,
          .feed_forward = 4,
          .kernels = is_affine ? 47.0 : 44.0};
}
// Of a pass outside the blocks: embeddings, output, scheduler.
constexpr double kOuterKernels = 60;

// What strategies add in each layer (mesh/ulysses.cc, mesh/ring.cc, mesh/tensor_parallel.cc): packing is a read and a
// write.
struct MeshCost {
  double whole = 0;  // bytes for each feature and token
  double heads = 0;  // the same of the rank's heads
  double kernels = 0;
  double collectives = 0;
};

MeshCost ringCost(const Split& split, double element) {
  const double turns = split.degrees.ring;
  MeshCost cost{.heads = 2 * 2 * element, .kernels = 2, .collectives = 1};  // keys and values into one block
  if (split.ring_gathers) return cost;
  // The first partial result to float32, the others too and merged 8+4, at last back.
  cost.heads += (element + 4) + (turns - 1) * (element + 4 + 12) + (4 + element);
  cost.kernels += 2 + (turns - 1) * 6;
  cost.collectives = turns - 1;
  return cost;
}

// Norms across heads are no longer one kernel. Three of them: squares (to float32 if need be, 4+4, mean 4), then the
// product with the root and the weight (to float32, 4+4, 4+4, back). Biases are added after the sum.
MeshCost tensorParallelCost(double element, double norms) {
  const double convert = element == sizeof(float) ? 0 : element + sizeof(float);
  return {.whole = 3 * 2 * element,
          .heads = 3 * (convert + 8 + 4 + convert + 8 + 8 + convert) - norms,
          .kernels = 3 * 8 + 3,
          .collectives = static_cast<double>(kTensorParallelReductions)};
}

MeshCost meshCost(const Split& split, double element, double norms) {
  const mesh::MeshDegrees& degrees = split.degrees;
  MeshCost cost;
  const auto add = [&cost](const MeshCost& part) {
    cost.whole += part.whole;
    cost.heads += part.heads;
    cost.kernels += part.kernels;
    cost.collectives += part.collectives;
  };
  if (degrees.ulysses > 1) {
    // Direct writes pack nothing: the result alone is.
    const double packed = split.direct_heads ? 1 : kHeadTransfers;
    add({.heads = packed * 2 * element, .kernels = packed, .collectives = kHeadTransfers});
  }
  if (degrees.ring > 1) add(ringCost(split, element));
  if (degrees.tp > 1) add(tensorParallelCost(element, norms));
  return cost;
}

// The link of each dimension, given that ranks lie on GPUs in their order.
struct Route {
  bool crosses = false;     // hosts, for at least one rank
  double remote_peers = 0;  // the largest share of a rank's peers that are on other hosts
};

Route routeOf(const mesh::DeviceMesh& mesh, mesh::MeshDim dim, uint32_t gpus_per_host) {
  Route route;
  for (const std::vector<Rank>& group : mesh.groups(dim)) {
    for (const Rank rank : group) {
      const auto remote = std::count_if(group.begin(), group.end(), [&](Rank peer) {
        return peer.value / gpus_per_host != rank.value / gpus_per_host;
      });
      route.crosses |= remote > 0;
      if (group.size() > 1)
        route.remote_peers =
            std::max(route.remote_peers, static_cast<double>(remote) / static_cast<double>(group.size() - 1));
    }
  }
  return route;
}

// Seconds of collectives along one dimension.
class Wire {
 public:
  Wire(const mesh::DeviceMesh& mesh, mesh::MeshDim dim, const Hardware& hardware, const Rates& rates)
      : route_(routeOf(mesh, dim, hardware.gpus_per_host)), rates_(rates) {}

  double latency() const { return route_.crosses ? rates_.network_latency : rates_.link_latency; }
  // To one neighbour, or round a ring of ranks: as fast as the slowest link.
  double neighbour(double bytes) const {
    return bytes / (route_.crosses ? std::min(rates_.network_bytes, rates_.link_bytes) : rates_.link_bytes);
  }
  // To all peers alike, both ways at once.
  double scatter(double bytes) const {
    return std::max(bytes * (1 - route_.remote_peers) / rates_.link_bytes,
                    bytes * route_.remote_peers / rates_.network_bytes);
  }

 private:
  const Route route_;
  const Rates& rates_;
};

// Seconds that ulysses takes in `layers` layers, in which a rank sends `bytes`.
double headSeconds(const Wire& wire, double layers, double bytes, const Split& split, const Rates& rates) {
  // Query, key and value are under way together; the result waits for attention.
  if (!split.direct_heads) return layers * 2 * wire.latency() + wire.scatter(bytes);
  const double gathered = bytes / kHeadTransfers;
  return layers * (rates.direct_latency + wire.latency()) + (bytes - gathered) / rates.direct_bytes +
         wire.scatter(gathered);
}

// Seconds that one pass waits for the exchanges of its layers.
double exchangeSeconds(const Model& model, const Job& job, const Split& split, const Hardware& hardware,
                       const Rates& rates) {
  const mesh::MeshDegrees& degrees = split.degrees;
  const auto mesh = mesh::DeviceMesh::make(degrees, split.gpus());
  const RankShape shape = rankShape(model, job, split);
  const Traffic sent = traffic(model, job, split);
  const double passes = static_cast<double>(shape.passes);
  const double layers = static_cast<double>(shape.layers);
  double seconds = 0;
  if (degrees.ulysses > 1) {
    const Wire wire(*mesh, mesh::MeshDim::kUlysses, hardware, rates);
    seconds += headSeconds(wire, layers, sent.ulysses / passes, split, rates);
  }
  if (degrees.ring > 1) {
    const Wire wire(*mesh, mesh::MeshDim::kRing, hardware, rates);
    const double turns = degrees.ring - 1;
    const double transfer = wire.latency() + wire.neighbour(sent.ring / passes / layers / turns);
    const double block =
        denoiserWork(model, job, split).block_attention_flops / layers / degrees.ring / rates.block_attention_flops;
    // The next block is under way while the current one is computed; the all-gather comes before all computing.
    seconds += split.ring_gathers ? layers * (wire.latency() + wire.neighbour(sent.ring / passes / layers))
                                  : layers * turns * std::max(0.0, transfer - block);
  }
  if (degrees.tp > 1) {
    const Wire wire(*mesh, mesh::MeshDim::kTensorParallel, hardware, rates);
    seconds += layers * kTensorParallelReductions * wire.latency() + wire.neighbour(sent.tp / passes);
  }
  if (degrees.pp > 1) {
    const Wire wire(*mesh, mesh::MeshDim::kPipeline, hardware, rates);
    seconds += wire.latency() + wire.neighbour(sent.pp / passes);
  }
  return seconds;
}

}  // namespace

HeadTransport headTransport(const mesh::MeshDegrees& degrees, const Hardware& hardware) {
  if (degrees.ulysses == 1) return {};
  const auto mesh = mesh::DeviceMesh::make(degrees, degrees.product());
  if (routeOf(*mesh, mesh::MeshDim::kUlysses, hardware.gpus_per_host).crosses)
    return {.direct = false, .reason = "its ranks are on several hosts"};
  if (hardware.link != Link::kNvlink) return {.direct = false, .reason = "GPUs that PCIe joins need not be peers"};
  return {.direct = true, .reason = "its ranks are on GPUs of one host that NVLink joins"};
}

RankShape rankShape(const Model& model, const Job& job, const Split& split) {
  const int64_t sequence = tokens(model, job);
  const int64_t branches = job.branches() / split.degrees.cfg;
  // The branches of a rank are what keeps a pipeline busy, one after the other.
  const bool is_batched = split.batched && split.degrees.pp == 1;
  return {.tokens = ceilDivide(sequence, split.sequence()),
          .sequence = sequence,
          .layers = ceilDivide(model.transformer.layers, split.degrees.pp),
          .batch = is_batched ? branches : 1,
          .passes = is_batched ? 1 : branches};
}

DenoiserWork denoiserWork(const Model& model, const Job& job, const Split& split) {
  const stages::wan::TransformerConfig& config = model.transformer;
  const RankShape shape = rankShape(model, job, split);
  const auto dim = static_cast<double>(config.dim());
  const auto ffn = static_cast<double>(config.ffn_dim);
  const auto layers = static_cast<double>(shape.layers);
  const double rows = static_cast<double>(shape.batch * shape.tokens);
  const double tp = split.degrees.tp;

  DenoiserWork work;
  // To query, key, value and output; to the text's query and output; up and down.
  work.matmul_flops = layers * kMultiplyAdd * rows * (6 * dim * dim + 2 * dim * ffn) / tp;
  const auto volume = static_cast<double>(config.patchVolume());
  work.matmul_flops += kMultiplyAdd * static_cast<double>(shape.tokens) * dim * volume *
                       static_cast<double>(config.in_channels + shape.batch * config.out_channels);

  const double self = layers * 2 * kMultiplyAdd * rows * static_cast<double>(shape.sequence) * dim / tp;
  work.attention_flops = layers * 2 * kMultiplyAdd * rows * static_cast<double>(kTextRows) * dim / tp;
  const bool turns = split.degrees.ring > 1 && !split.ring_gathers;
  (turns ? work.block_attention_flops : work.attention_flops) += self;

  const PassBytes pass = passBytes(config, job.dtype);
  const MeshCost mesh = meshCost(split, static_cast<double>(byteSize(job.dtype)), pass.norms);
  work.memory_bytes = layers * rows *
                      (dim * (pass.whole + mesh.whole) + dim / tp * (pass.heads + pass.norms + mesh.heads) +
                       ffn / tp * pass.feed_forward);
  work.kernels = layers * (pass.kernels + mesh.kernels) + kOuterKernels;
  work.collectives = layers * mesh.collectives + (split.degrees.cfg > 1 ? 1 : 0) + (split.degrees.pp > 1 ? 3 : 0);
  return work;
}

Traffic traffic(const Model& model, const Job& job, const Split& split) {
  const mesh::MeshDegrees& degrees = split.degrees;
  const RankShape shape = rankShape(model, job, split);
  const auto element = static_cast<double>(byteSize(job.dtype));
  const double rows = static_cast<double>(shape.batch * shape.tokens * shape.passes);  // of a step
  const double activations = rows * static_cast<double>(model.transformer.dim()) * element;
  const double velocity =
      static_cast<double>(shape.tokens * model.transformer.patchVolume() * model.transformer.out_channels) * element;
  const auto layers = static_cast<double>(shape.layers);
  const double tp = degrees.tp;
  Traffic sent;
  sent.ulysses = layers * 4 * activations / tp * (degrees.ulysses - 1) / degrees.ulysses;
  sent.ring = layers * (degrees.ring - 1) * 2 * activations / tp;
  sent.tp = layers * 3 * (activations + rows * sizeof(float)) * 2 * (tp - 1) / tp;
  if (degrees.cfg > 1) sent.cfg = velocity;
  if (degrees.pp > 1) sent.pp = activations + velocity * (job.branches() / degrees.cfg);
  return sent;
}

StepTime stepTime(const Model& model, const Job& job, const Split& split, const Hardware& hardware) {
  const Rates rates = ratesOf(hardware, job.dtype);
  const RankShape shape = rankShape(model, job, split);
  const DenoiserWork work = denoiserWork(model, job, split);
  const double passes = static_cast<double>(shape.passes);
  StepTime time;
  time.matmul = passes * work.matmul_flops / rates.matmul_flops;
  time.attention = passes * (work.attention_flops / rates.attention_flops +
                             work.block_attention_flops / rates.block_attention_flops);
  time.memory = passes * work.memory_bytes / rates.memory_bytes;
  time.exchange = passes * exchangeSeconds(model, job, split, hardware, rates);
  time.bubble = (time.matmul + time.attention + time.memory + time.exchange) * (split.degrees.pp - 1) / passes;
  if (split.degrees.cfg > 1) {
    const auto mesh = mesh::DeviceMesh::make(split.degrees, split.gpus());
    const Wire wire(*mesh, mesh::MeshDim::kCfg, hardware, rates);
    time.exchange += wire.latency() + wire.scatter(traffic(model, job, split).cfg);
  }
  time.device = time.matmul + time.attention + time.memory + time.exchange + time.bubble;
  // The hosts of a pipeline count as waiting for each other like its devices: nothing was measured.
  const double ticks = passes + split.degrees.pp - 1;
  time.host = ticks * (work.kernels * rates.kernel_seconds + work.collectives * rates.collective_seconds);
  time.total = std::max(time.device, time.host);
  return time;
}

}  // namespace latentd::plan
