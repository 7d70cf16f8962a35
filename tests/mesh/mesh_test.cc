#include "mesh/mesh.h"

#include <ATen/ops/zeros.h>

#include "mesh/collectives.h"
#include "mesh/communication_error.h"
#include "mesh/first_cause.h"
#include "tests/mesh/ranks.h"
#include "tests/support/catch.h"

namespace latentd::mesh {
namespace {

using testing::ChildRank;
using testing::Ranks;

std::vector<int64_t> numbers(const std::vector<Rank>& ranks) {
  std::vector<int64_t> all;
  for (const Rank rank : ranks)
    all.push_back(rank.value);
  return all;
}

void gatherOverEachDimension(Mesh& mesh) {
  const DeviceMesh& shape = mesh.shape();
  const int64_t mine = mesh.rank().value;
  // By turns and again and again: the groups share sockets' thread and nothing else.
  for (int round = 0; round < 5; ++round) {
    for (const MeshDim dim : kMeshDims) {
      ProcessGroup& group = mesh.group(dim);
      CHECK(group.size() == static_cast<int>(mesh.degree(dim)));
      CHECK(group.rank() == static_cast<int>(mesh.coordinate(dim)));
      CHECK(allGatherInt(group, mine, at::kCPU) == numbers(shape.peers(mesh.rank(), dim)));
    }
    CHECK(mesh.sequence().rank() == static_cast<int>(shape.sequenceCoordinate(mesh.rank())));
    CHECK(allGatherInt(mesh.sequence(), mine, at::kCPU) == numbers(shape.sequencePeers(mesh.rank())));
    std::vector<int64_t> everyone;
    for (uint32_t each = 0; each < shape.worldSize(); ++each)
      everyone.push_back(each);
    CHECK(mesh.world().rank() == mine);
    CHECK(allGatherInt(mesh.world(), mine, at::kCPU) == everyone);
  }
}

void sumOverSeveralGroupsAtOnce(Mesh& mesh) {
  const std::vector<ProcessGroup*> groups{&mesh.group(MeshDim::kCfg), &mesh.group(MeshDim::kRing),
                                          &mesh.group(MeshDim::kUlysses), &mesh.sequence(), &mesh.world()};
  for (int round = 0; round < 20; ++round) {
    std::vector<at::Tensor> sums;
    std::vector<Pending> pending;
    for (ProcessGroup* const group : groups) {
      sums.push_back(at::zeros({1000}, at::kLong).add_(static_cast<int64_t>(mesh.rank().value) + round));
      pending.push_back(group->allReduceSum(sums.back()));
    }
    // Ranks wait in different orders.
    for (size_t i = 0; i < groups.size(); ++i)
      pending[(i + mesh.rank().value) % groups.size()].wait();
    for (size_t i = 0; i < groups.size(); ++i) {
      int64_t expected = 0;
      for (const Rank member : groups[i]->members())
        expected += member.value + round;
      CHECK(sums[i].eq(expected).all().item<bool>());
    }
  }
}

}  // namespace

TEST_CASE("rank of meshes of four", "[.][child]") {
  ChildRank rank;
  gatherOverEachDimension(rank.mesh());
  for (const MeshDegrees& degrees :
       {MeshDegrees{.ring = 2, .ulysses = 2}, MeshDegrees{.pp = 2, .tp = 2}, MeshDegrees{.dp = 2, .spatial = 2}}) {
    rank.remake(degrees);
    gatherOverEachDimension(rank.mesh());
  }
}

TEST_CASE("rank of a mesh of eight", "[.][child]") {
  ChildRank rank;
  gatherOverEachDimension(rank.mesh());
  sumOverSeveralGroupsAtOnce(rank.mesh());
}

TEST_CASE("mesh: a collective over each dimension meets the ranks of that dimension [M1]", "[mesh]") {
  Ranks("rank of meshes of four", {.degrees = {.cfg = 2, .ulysses = 2}, .recorder = false}).requireSuccess();
}

TEST_CASE("mesh: of three dimensions too, with operations of several groups under way together [M1]", "[mesh]") {
  Ranks("rank of a mesh of eight", {.degrees = {.cfg = 2, .ring = 2, .ulysses = 2}}).requireSuccess();
}

TEST_CASE("rank that looks at its groups", "[.][child]") {
  ChildRank rank;
  Mesh& mesh = rank.mesh();
  // Ranks that share two names are connected once.
  CHECK(&mesh.sequence() == &mesh.group(MeshDim::kUlysses));
  CHECK(&mesh.world() == &mesh.group(MeshDim::kUlysses));
  CHECK(mesh.world().name() == "ulysses");
  CHECK(mesh.group(MeshDim::kTensorParallel).size() == 1);
  CHECK(&mesh.group(MeshDim::kTensorParallel) == &mesh.group(MeshDim::kCfg));
  CHECK_FALSE(mesh.alone());
  CHECK_FALSE(mesh.used());
  allGatherInt(mesh.group(MeshDim::kCfg), 1, at::kCPU);
  CHECK_FALSE(mesh.used());
  allGatherInt(mesh.world(), 1, at::kCPU);
  CHECK(mesh.used());
}

TEST_CASE("mesh: groups of the same ranks are one", "[mesh]") {
  Ranks("rank that looks at its groups", {.degrees = {.ulysses = 2}}).requireSuccess();
}

TEST_CASE("mesh: options that make no mesh are refused", "[mesh]") {
  const auto refusal = [](Mesh::Options options) { return messageOf(Mesh::make(std::move(options)).status()); };
  const std::chrono::seconds second(1);
  CHECK(refusal({.degrees = {.tp = 2}, .rank = Rank(2), .rendezvous_file = "x", .timeout = second}) ==
        "rank 2 is none of a mesh of 2 ranks");
  CHECK(refusal({.degrees = {.tp = 0}}).find("degree tp is 0") != std::string::npos);
  CHECK(refusal({.degrees = {.tp = 2}, .backend = CommunicationBackend::kNccl}) ==
        "NCCL connects GPUs, and the device is cpu: use gloo");
  CHECK(refusal({.degrees = {.tp = 2}}) == "a mesh of several ranks needs a rendezvous file and a time-out");
  CHECK(toString(CommunicationBackend::kGloo) == "gloo");
  CHECK(toString(CommunicationBackend::kNccl) == "nccl");
}

TEST_CASE("rank that waits for another", "[.][child]") {
  ChildRank rank(ChildRank::Start::kNothing);
  Mesh::Options options = rank.options({.tp = 2});
  if (options.rank == Rank(1)) return rank.stopHere();
  const auto begin = std::chrono::steady_clock::now();
  const auto timeout = options.timeout;
  const Status status = Mesh::make(std::move(options)).status();
  CHECK(status.code() == absl::StatusCode::kDeadlineExceeded);
  CHECK(messageOf(status).find("rank 0 of 2 did not meet the others") != std::string::npos);
  const auto waited = std::chrono::steady_clock::now() - begin;
  CHECK(waited >= timeout);
  CHECK(waited < timeout + std::chrono::seconds(20));
}

TEST_CASE("mesh: a rank that never comes is waited for until the deadline", "[mesh]") {
  Ranks ranks("rank that waits for another", {.degrees = {.tp = 2}, .timeout = std::chrono::milliseconds(1'500)});
  REQUIRE(ranks.next(1) == "here");
  ranks.send(1, "go");
  ranks.requireSuccess();
}

TEST_CASE("rank whose peer gave up while they met", "[.][child]") {
  ChildRank rank(ChildRank::Start::kNothing);
  Mesh::Options options = rank.options({.tp = 2});
  const Status cause = absl::ResourceExhaustedError("rank 1 has no memory left");
  if (options.rank == Rank(1)) {
    CHECK(FirstCause(options.rendezvous_file + ".cause").give(cause) == cause);
    return rank.stopHere();
  }
  rank.stopHere();
  CHECK(Mesh::make(std::move(options)).status() == cause);
}

TEST_CASE("mesh: the cause of a rank that gave up before all had met is told [M2]", "[mesh]") {
  Ranks ranks("rank whose peer gave up while they met",
              {.degrees = {.tp = 2}, .timeout = std::chrono::milliseconds(500)});
  ranks.meet();
  ranks.requireSuccess();
}

}  // namespace latentd::mesh
