#include "mesh/sequence_parallel.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/scaled_dot_product_attention.h>

#include <random>
#include <string>

#include "mesh/ulysses.h"
#include "tests/mesh/random_tensor.h"
#include "tests/mesh/ranks.h"
#include "tests/mesh/topology_list.h"
#include "tests/stages/cuda_device.h"
#include "tests/support/catch.h"
#include "tests/support/contains_text.h"

namespace latentd::mesh {
namespace {

using latentd::testing::containsText;
using testing::ChildRank;
using testing::maxDifference;
using testing::randomInteger;
using testing::randomTensor;
using testing::Ranks;
using testing::rmsDifference;

// Of 2, 3, 4, 5 and 8 ranks.
const std::vector<MeshDegrees> kTopologies = {
    {.ulysses = 2},
    {.ring = 2},
    {.ring = 3},
    {.ulysses = 4},
    {.ring = 2, .ulysses = 2},
    {.ulysses = 5},
    {.ring = 8},
    {.ring = 2, .ulysses = 4},
};

at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  return at::scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)).transpose(1, 2);
}

// ---- shards -------------------------------------------------------------------------------------------------

TEST_CASE("rank slices and gathers", "[.][child]") {
  ChildRank rank;
  ProcessGroup& group = rank.mesh().world();
  std::mt19937_64 random(std::stoull(rank.setup()));
  for (int i = 0; i < 40; ++i) {
    std::vector<int64_t> shape = {randomInteger(1, 3, random), randomInteger(1, 3, random), 2};
    const int64_t dim = randomInteger(0, 2, random);
    const int64_t length = shape[dim] = randomInteger(1, 5 * group.size(), random);
    const int64_t multiple = randomInteger(1, 3, random);
    INFO("length " << length << ", dimension " << dim << ", multiple " << multiple);
    const at::Tensor whole = randomTensor(shape, random);
    const SequenceShard shard(group, length, multiple);
    const at::Tensor share = shard.slice(whole, dim - (i % 2 == 0 ? 0 : 3));
    CHECK(share.size(dim) == shard.localLength());
    CHECK(shard.localLength() % multiple == 0);
    CHECK(shard.paddedLength() < length + group.size() * multiple);
    int64_t valid = 0;
    for (int r = 0; r < group.size(); ++r)
      valid += shard.validLength(r);
    CHECK(valid == length);
    const int64_t own = shard.validLength(group.rank());
    CHECK(share.narrow(dim, own, shard.localLength() - own).eq(0).all().item<bool>());
    CHECK(shard.gather(share, dim).equal(whole));
    CHECK_THROWS_WITH(shard.slice(share.narrow(dim, 0, 0), dim),
                      containsText("0 rows") && containsText(std::to_string(length)));
  }
}

TEST_CASE("sequence shards: shares, padding trimmed, are the whole along any dimension", "[mesh]") {
  Ranks("rank slices and gathers", {.degrees = {.ulysses = 3}, .setup = "1"}).requireSuccess();
}

TEST_CASE("sequence shards: alone nothing is copied", "[mesh]") {
  ProcessGroup alone;
  const at::Tensor whole = at::arange(12).view({3, 4});
  const SequenceShard shard(alone, 4);
  CHECK(shard.slice(whole, 1).data_ptr() == whole.data_ptr());
  CHECK(shard.gather(whole, 1).data_ptr() == whole.data_ptr());
  CHECK_THROWS_WITH(SequenceShard(alone, 0), containsText("0 rows"));
}

// ---- ulysses ------------------------------------------------------------------------------------------------

TEST_CASE("rank transposes heads", "[.][child]") {
  ChildRank rank;
  ProcessGroup& group = rank.mesh().group(MeshDim::kUlysses);
  const auto size = static_cast<uint64_t>(group.size());
  std::mt19937_64 random(std::stoull(rank.setup()));
  for (int i = 0; i < 20; ++i) {
    const int64_t batch = randomInteger(1, 3, random);
    const int64_t heads = randomInteger(1, 3, random);  // of a rank
    const int64_t rows = randomInteger(1, 5, random);   // of a rank
    const at::Tensor whole = randomTensor({batch, rows * group.size(), heads * group.size(), 4}, random);
    const at::Tensor share = whole.narrow(1, rows * group.rank(), rows);
    const at::Tensor own_heads = whole.narrow(2, heads * group.rank(), heads);
    const uint64_t before = group.bytesSent();
    CHECK(scatterHeads(group, share).wait().equal(own_heads));
    CHECK(group.bytesSent() - before == share.nbytes() / size * (size - 1));
    CHECK(gatherHeads(group, own_heads).wait().equal(share));
    CHECK(gatherHeads(group, scatterHeads(group, share).wait()).wait().equal(share));
  }
  const uint64_t submitted = group.submitted();
  const std::string ranks = std::to_string(size) + " ranks";
  CHECK_THROWS_WITH(scatterHeads(group, randomTensor({1, 2, 7, 4}, random)),
                    containsText("7 attention heads") && containsText(ranks));
  CHECK_THROWS_WITH(gatherHeads(group, randomTensor({1, 11, 1, 4}, random)),
                    containsText("11 rows") && containsText(ranks));
  CHECK(group.submitted() == submitted);
  // Nothing was communicated, and nothing is broken.
  const at::Tensor share = randomTensor({1, 2, group.size(), 4}, random);
  CHECK(gatherHeads(group, scatterHeads(group, share).wait()).wait().equal(share));
}

TEST_CASE("ulysses: each rank gets all rows of its heads, and its rows of all heads back", "[mesh]") {
  Ranks("rank transposes heads", {.degrees = {.ulysses = 3}, .setup = "2"}).requireSuccess();
}

TEST_CASE("ulysses: heads that do not divide are refused with both numbers", "[mesh]") {
  CHECK(checkHeads(12, 4).ok());
  const Status status = checkHeads(12, 5);
  CHECK(status.code() == absl::StatusCode::kInvalidArgument);
  CHECK_THAT(messageOf(status), containsText("12 attention heads") && containsText("5 ranks"));
}

// ---- attention ----------------------------------------------------------------------------------------------

uint64_t bytesSent(Mesh& mesh) {
  return mesh.group(MeshDim::kUlysses).bytesSent() + mesh.group(MeshDim::kRing).bytesSent();
}

// What one attention over `share` ([B, S_local, H, D]) moves: Q, K, V and the result but for the own part of each, and
// K and V of an own block for each of the other ranks of the ring.
uint64_t expectedBytes(const Mesh& mesh, const at::Tensor& share) {
  const uint64_t bytes = share.numel() * share.element_size();
  const uint64_t ulysses = mesh.degree(MeshDim::kUlysses);
  return 4 * bytes / ulysses * (ulysses - 1) + 2 * bytes * (mesh.degree(MeshDim::kRing) - 1);
}

void checkAttention(ChildRank& rank, SequenceParallel& parallel, at::IntArrayRef shape, at::ScalarType dtype,
                    std::mt19937_64& random) {
  Mesh& mesh = rank.mesh();
  // Side by side, as a fused projection gives them.
  const at::Tensor qkv = randomTensor({shape[0], shape[1], 3, shape[2], shape[3]}, random).to(rank.device(), dtype);
  const auto share = [&](int64_t i) { return parallel.shard().slice(qkv.select(2, i), 1); };
  const at::Tensor q = share(0);
  // Ranks that write into each other's memory tell where it is, once.
  if (rank.ulysses() != ScatterTransport::kC10d) parallel.begin(share(2)).attend(q, share(1));
  const uint64_t before = bytesSent(mesh);
  const at::Tensor output = parallel.begin(share(2)).attend(q, share(1));
  CHECK(bytesSent(mesh) - before == expectedBytes(mesh, q));
  CHECK(output.sizes() == q.sizes());
  CHECK(output.scalar_type() == dtype);
  const at::Tensor actual = parallel.shard().gather(output, 1);
  const at::Tensor exact = qkv.to(at::kFloat);
  const at::Tensor expected = attend(exact.select(2, 0), exact.select(2, 1), exact.select(2, 2));
  if (dtype == at::kFloat) {
    CHECK(maxDifference(actual, expected) <= 1e-5);
  } else {
    // A ring rounds each part once more than one rank does.
    const at::Tensor alone = attend(qkv.select(2, 0), qkv.select(2, 1), qkv.select(2, 2));
    CHECK(rmsDifference(actual, expected) <= 2 * rmsDifference(alone, expected));
  }
}

void checkRandomShapes(ChildRank& rank, std::mt19937_64& random) {
  Mesh& mesh = rank.mesh();
  const int64_t ranks = mesh.shape().sequenceDegree();
  for (int i = 0; i < 24; ++i) {
    // Every third is shorter than the ranks are many, or not much longer.
    const int64_t length = randomInteger(1, i % 3 == 0 ? ranks + 1 : 150, random);
    const int64_t heads = mesh.degree(MeshDim::kUlysses) * randomInteger(1, 3, random);
    const int64_t features = 4 * randomInteger(1, 16, random);
    const auto variant = i % 2 == 0 ? RingVariant::kExchange : RingVariant::kAllGather;
    const auto dtype = i % 6 < 4 ? at::kFloat : at::kBFloat16;
    SequenceParallel parallel(mesh, length, variant, attend);
    // Batches of other sizes through the same buffers, as guidance has them.
    for (const int64_t batch : {int64_t{1}, int64_t{3}, int64_t{2}}) {
      INFO("case " << i << ": [" << batch << ", " << length << ", " << heads << ", " << features << "] " << dtype);
      checkAttention(rank, parallel, {batch, length, heads, features}, dtype, random);
    }
  }
}

TEST_CASE("rank attends to sharded sequences", "[.][child]") {
  ChildRank rank(ChildRank::Start::kNothing);
  testing::forEachTopology(rank, [&](const MeshDegrees& degrees) {
    INFO(toString(degrees) << ", seed " << testing::firstLine(rank));
    std::mt19937_64 random(std::stoull(testing::firstLine(rank)));
    checkRandomShapes(rank, random);
  });
}

constexpr const char* kRank = "rank attends to sharded sequences";

TEST_CASE("sequence parallel: attention over ranks is that of one, and moves what the formula says", "[mesh]") {
  testing::requireTopologies(kRank, kTopologies, {.setup = "11"});
}

TEST_CASE("sequence parallel: by direct writes it is the same", "[mesh]") {
  testing::requireTopologies(kRank, {{.ulysses = 2}, {.ulysses = 4}, {.ring = 2, .ulysses = 2}},
                             {.setup = "15", .ulysses = ScatterTransport::kDirect});
}

TEST_CASE("sequence parallel: many random shapes", "[.][long]") {
  std::random_device source;
  for (int i = 0; i < 20; ++i)
    testing::requireTopologies(kRank, kTopologies, {.setup = std::to_string(source())});
}

TEST_CASE("sequence parallel: on devices attention over ranks is that of one", "[mesh][cuda]") {
  if (!stages::testing::hasCuda()) return;
  // Ranks that share a device.
  testing::requireTopologies(kRank, {{.ulysses = 2}, {.ring = 2}, {.ring = 2, .ulysses = 2}},
                             {.setup = "13", .device = stages::testing::cudaDevice()});
  if (c10::cuda::device_count() < 2) return;
  testing::requireTopologies(kRank, {{.ulysses = 2}, {.ring = 2}},
                             {.setup = "14", .device = at::Device(at::kCUDA), .backend = CommunicationBackend::kNccl});
}

// ---- order --------------------------------------------------------------------------------------------------

TEST_CASE("rank attends once", "[.][child]") {
  ChildRank rank;
  std::mt19937_64 random(5);
  SequenceParallel parallel(rank.mesh(), 12, RingVariant::kExchange, attend);
  checkAttention(rank, parallel, {1, 12, 4, 8}, at::kFloat, random);
}

std::vector<Operation> operationsOf(const Ranks& ranks, const std::string& kind) {
  std::vector<Operation> found;
  for (const Operation& operation : ranks.recorder().operations(Rank(0))) {
    if (operation.kind == kind) found.push_back(operation);
  }
  return found;
}

TEST_CASE("ulysses: Q, K and V are submitted before one of them is waited for", "[mesh]") {
  Ranks ranks("rank attends once", {.degrees = {.ulysses = 2}});
  ranks.requireSuccess();
  const auto transpositions = operationsOf(ranks, "all_to_all");
  REQUIRE(transpositions.size() == 4);
  for (size_t i = 0; i < 3; ++i) {
    CHECK(transpositions[2].submitted_ns <= transpositions[i].done_ns);
    CHECK(transpositions[i].done_ns <= transpositions[3].submitted_ns);
  }
}

TEST_CASE("ring: K and V of a block are one transfer, and the last block is not sent on", "[mesh]") {
  Ranks ranks("rank attends once", {.degrees = {.ring = 3}});
  ranks.requireSuccess();
  const auto transfers = operationsOf(ranks, "exchange");
  REQUIRE(transfers.size() == 2);
  for (const Operation& transfer : transfers)
    CHECK(transfer.bytes_sent == 2 * 4 * (4 * 8) * sizeof(float));
}

}  // namespace
}  // namespace latentd::mesh
