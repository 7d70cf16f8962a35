#include <signal.h>

#include <chrono>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include <ATen/ops/full.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDAStream.h>

#include "mesh/communication_error.h"
#include "mesh/head_scatter.h"
#include "mesh/ulysses.h"
#include "tests/mesh/heads.h"
#include "tests/mesh/random_shares.h"
#include "tests/mesh/random_tensor.h"
#include "tests/mesh/ranks.h"
#include "tests/mesh/topology_list.h"
#include "tests/support/catch.h"
#include "tests/support/contains_text.h"

// Heads scattered by direct writes between GPUs: [cuda] ranks share one, [nccl] they have one each.
namespace latentd::mesh {
namespace {

using latentd::testing::containsText;
using std::chrono::milliseconds;
using std::chrono::steady_clock;
using testing::ChildRank;
using testing::Heads;
using testing::randomInteger;
using testing::randomTensor;
using testing::Ranks;
using testing::RanksOptions;
using testing::scatter;

void finishModel(at::Device device) { c10::cuda::getCurrentCUDAStream(device.index()).synchronize(); }

RanksOptions sharing(MeshDegrees degrees, std::string setup = "") {
  return {.degrees = degrees,
          .setup = std::move(setup),
          .device = at::Device(at::kCUDA, 0),
          .ulysses = ScatterTransport::kDirect};
}

RanksOptions apart(MeshDegrees degrees, std::string setup = "") {
  return {.degrees = degrees,
          .setup = std::move(setup),
          .device = at::kCUDA,
          .backend = CommunicationBackend::kNccl,
          .ulysses = ScatterTransport::kDirect};
}

// ---- results ------------------------------------------------------------------------------------------------

TEST_CASE("rank scatters random shares on a GPU", "[.][child]") {
  ChildRank rank(ChildRank::Start::kNothing);
  testing::scatterRandomShares(rank, {.rounds = 40, .rows = 37, .head_dim = 32});
}

TEST_CASE("head scatter: direct writes between ranks on one GPU give what the all-to-all gives [M12]", "[mesh][cuda]") {
  testing::requireTopologies("rank scatters random shares on a GPU", {{.ulysses = 2}, {.ulysses = 3}, {.ulysses = 4}},
                             sharing({}, "21"));
}

TEST_CASE("head scatter: direct writes between GPUs give what the all-to-all gives [M12]", "[mesh][nccl]") {
  testing::requireTopologies("rank scatters random shares on a GPU", {{.ulysses = 2}}, apart({}, "22"));
}

// ---- order --------------------------------------------------------------------------------------------------

// Keeps the stream at work for some time, which differs between ranks and rounds.
void compute(at::Tensor& square, int64_t products) {
  for (int64_t i = 0; i < products; ++i)
    square = at::matmul(square, square).clamp(-1, 1);
}

// The host never waits inside: devices alone keep the order.
TEST_CASE("rank reads slowly on a GPU", "[.][child]") {
  ChildRank rank;
  HeadScatter& heads = rank.mesh().headScatter();
  const auto own = static_cast<int>(rank.rank());
  const int ranks = rank.mesh().group(MeshDim::kUlysses).size();
  const auto options = at::TensorOptions(at::kFloat).device(rank.device());
  std::mt19937_64 random(rank.rank());
  at::Tensor square = randomTensor({1024, 1024}, random).to(rank.device());
  at::Tensor wrong = at::zeros({}, options);
  const auto marked = [&](int round, int tag, int from) {
    return at::full({1, 512, ranks, 64}, 100.0 * round + 10 * tag + from, options);
  };
  const auto check = [&](const at::Tensor& got, int round, int tag) {
    for (int from = 0; from < ranks; ++from)
      wrong += got.narrow(1, 512 * from, 512).ne(100.0 * round + 10 * tag + from).sum();
  };
  for (int round = 1; round <= 150; ++round) {
    heads.begin({1, 512, ranks, 64}, at::kFloat);
    PendingHeads value = heads.submit(HeadTag::kValue, marked(round, 0, own));
    compute(square, randomInteger(0, 20, random));  // Q and K
    PendingHeads query = heads.submit(HeadTag::kQuery, marked(round, 1, own));
    PendingHeads key = heads.submit(HeadTag::kKey, marked(round, 2, own));
    const at::Tensor q = query.wait(), k = key.wait(), v = value.wait();
    check(q, round, 1);
    compute(square, randomInteger(0, 20, random));  // an attention
    check(q, round, 1);
    check(k, round, 2);
    check(v, round, 0);
    // What is not written anew in the next round would be seen.
    for (const at::Tensor& read : {q, k, v})
      read.fill_(-1);
  }
  CHECK(wrong.item<float>() == 0);
  CHECK(heads.direct());
}

TEST_CASE("head scatter: devices read nothing early and write nothing early [M10]", "[mesh][cuda]") {
  const uint32_t ranks = GENERATE(2u, 4u);
  Ranks("rank reads slowly on a GPU", sharing({.ulysses = ranks})).requireSuccess();
}

TEST_CASE("head scatter: GPUs read nothing early and write nothing early [M10]", "[mesh][nccl]") {
  Ranks("rank reads slowly on a GPU", apart({.ulysses = 2})).requireSuccess();
}

// ---- failures -----------------------------------------------------------------------------------------------

// The last rank stops between two of the many rounds that the others have submitted ahead.
TEST_CASE("rank waits for a peer on a GPU", "[.][child]") {
  ChildRank rank;
  HeadScatter& heads = rank.mesh().headScatter();
  ProcessGroup& group = rank.mesh().group(MeshDim::kUlysses);
  const at::Tensor share = at::zeros({1, 64, group.size(), 64}, at::TensorOptions(at::kHalf).device(rank.device()));
  for (int round = 0; round < 5; ++round)
    scatter(heads, {share, share, share});
  finishModel(rank.device());
  if (rank.rank() + 1 == static_cast<uint32_t>(group.size())) return rank.stopHere();
  rank.stopHere();
  std::string ended;
  const auto begun = steady_clock::now();
  try {
    while (steady_clock::now() - begun < milliseconds(60'000)) {
      scatter(heads, {share, share, share});
      finishModel(rank.device());  // returns though nobody writes
    }
  } catch (const CommunicationError& error) {
    ended = error.what();
  }
  rank.send(ended);
}

std::string causeOf(const RanksOptions& options, int signal) {
  Ranks ranks("rank waits for a peer on a GPU", options);
  const size_t victim = options.degrees.ulysses - 1;
  for (size_t rank = 0; rank <= victim; ++rank)
    REQUIRE(ranks.next(rank) == "here");
  if (signal == SIGKILL) {
    ranks.kill(victim);
  } else {
    ranks.signal(victim, signal);
  }
  std::vector<std::string> causes;
  for (size_t rank = 0; rank < victim; ++rank)
    ranks.send(rank, "on");
  for (size_t rank = 0; rank < victim; ++rank)
    causes.push_back(ranks.next(rank));
  for (const std::string& cause : causes)
    CHECK(cause == causes.front());
  if (signal != SIGKILL) ranks.kill(victim);
  ranks.requireSuccess();
  return causes.front();
}

TEST_CASE("head scatter: devices that wait for a rank that is killed go on, and the mesh ends [M3]", "[mesh][cuda]") {
  CHECK_THAT(causeOf(sharing({.ulysses = GENERATE(2u, 3u)}), SIGKILL), containsText("rank"));
}

TEST_CASE("head scatter: devices that wait for a rank that hangs go on at the deadline [M4]", "[mesh][cuda]") {
  RanksOptions options = sharing({.ulysses = 2});
  options.timeout = milliseconds(4'000);
  CHECK_THAT(causeOf(options, SIGSTOP), containsText("not done within 4000 ms"));
}

TEST_CASE("head scatter: a GPU that waits for a rank that is killed goes on, and the mesh ends [M3]", "[mesh][nccl]") {
  CHECK_THAT(causeOf(apart({.ulysses = 2}), SIGKILL), containsText("rank"));
}

// ---- time ---------------------------------------------------------------------------------------------------

double microseconds(HeadScatter& heads, const Heads& given, at::Device device) {
  constexpr int kRounds = 50;
  for (int round = 0; round < 10; ++round)
    scatter(heads, given);
  finishModel(device);
  const auto begun = steady_clock::now();
  for (int round = 0; round < kRounds; ++round)
    scatter(heads, given);
  finishModel(device);
  return std::chrono::duration<double, std::micro>(steady_clock::now() - begun).count() / kRounds;
}

TEST_CASE("rank of a table of rounds on a GPU", "[.][child]") {
  ChildRank rank;
  const int ranks = rank.mesh().group(MeshDim::kUlysses).size();
  // A layer of 1.3B and 14B at 480x832, and of 14B at 720p, 81 frames: half a pair of the batch.
  for (const std::vector<int64_t>& whole : {std::vector<int64_t>{32760, 12}, {32760, 40}, {75600, 40}}) {
    const at::Tensor qkv =
        at::zeros({1, whole[0] / ranks, 3, whole[1], 128}, at::TensorOptions(at::kBFloat16).device(rank.device()));
    const Heads given{qkv.select(2, 0), qkv.select(2, 1), qkv.select(2, 2)};
    rank.send(std::to_string(static_cast<int64_t>(microseconds(rank.mesh().headScatter(), given, rank.device()))));
  }
}

void showTable(RanksOptions options) {
  for (const ScatterTransport transport : {ScatterTransport::kC10d, ScatterTransport::kDirect}) {
    options.ulysses = transport;
    Ranks ranks("rank of a table of rounds on a GPU", options);
    std::string line = toString(options.degrees) + (transport == ScatterTransport::kC10d ? " c10d" : " direct");
    for (int shape = 0; shape < 3; ++shape)
      line += "  " + ranks.next(0);
    WARN(line);
    ranks.requireSuccess();
  }
}

TEST_CASE("head scatter: microseconds of Q, K and V on one GPU, as a table", "[.][table][cuda]") {
  showTable(sharing({.ulysses = 2}));
  showTable(sharing({.ulysses = 4}));
}

TEST_CASE("head scatter: microseconds of Q, K and V between GPUs, as a table", "[.][table][nccl]") {
  showTable(apart({.ulysses = 2}));
}

}  // namespace
}  // namespace latentd::mesh
