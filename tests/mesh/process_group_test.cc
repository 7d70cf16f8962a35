#include "mesh/process_group.h"

#include <filesystem>
#include <iterator>

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include "mesh/communication_error.h"
#include "tests/mesh/group_operations.h"
#include "tests/mesh/ranks.h"
#include "tests/support/catch.h"

namespace latentd::mesh {
namespace {

using testing::ChildRank;
using testing::Ranks;

size_t threadsOfThisProcess() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return static_cast<size_t>(std::distance(begin(tasks), end(tasks)));
}

}  // namespace

TEST_CASE("process group: every operation, of every dtype, on 2 to 8 ranks, with its bytes [M7]", "[mesh]") {
  Ranks("rank that does so in smaller and smaller groups", {.degrees = {.tp = 8}}).requireSuccess();
}

TEST_CASE("process group: ranks that compare each operation do the same", "[mesh]") {
  Ranks(testing::kEveryOperation, {.degrees = {.tp = 3}, .verify = true}).requireSuccess();
}

TEST_CASE("process group: without a flight recorder", "[mesh]") {
  Ranks(testing::kEveryOperation, {.degrees = {.tp = 2}, .recorder = false}).requireSuccess();
}

TEST_CASE("process group: a rank that is alone copies, and has no thread [M6]", "[mesh]") {
  const size_t threads = threadsOfThisProcess();
  Mesh mesh;
  CHECK(mesh.alone());
  const at::Tensor tensor = at::arange(6).view({2, 3});
  for (const MeshDim dim : kMeshDims) {
    ProcessGroup& group = mesh.group(dim);
    CHECK(group.size() == 1);
    const at::Tensor gathered = at::zeros({2, 3}, at::kLong);
    group.allGather(gathered, tensor).wait();
    CHECK(gathered.equal(tensor));
    const at::Tensor moved = at::zeros({2, 3}, at::kLong);
    group.allToAll(moved, tensor).wait();
    CHECK(moved.equal(tensor));
    const at::Tensor summed = tensor.clone();
    group.allReduceSum(summed).wait();
    group.broadcast(summed, 0).wait();
    CHECK(summed.equal(tensor));
    group.exchange({}, {}).wait();
    CHECK(group.bytesSent() == 0);
  }
  CHECK(threadsOfThisProcess() == threads);
  CHECK_FALSE(mesh.used());
}

TEST_CASE("rank with wrong arguments", "[.][child]") {
  ChildRank rank;
  ProcessGroup& group = rank.mesh().world();
  const at::Tensor two = at::zeros({2, 4}, at::kFloat);
  const auto refused = [](auto&& operation) {
    try {
      operation();
    } catch (const CommunicationError& error) {
      return error.status().code() == absl::StatusCode::kInvalidArgument;
    }
    return false;
  };
  CHECK(refused([&] { group.allGather(two, two); }));
  CHECK(refused([&] { group.allGather(at::zeros({4, 4}, at::kLong), two); }));
  CHECK(refused([&] { group.allGather(at::zeros({8, 2}, at::kFloat).t(), two); }));
  CHECK(refused([&] { group.allToAll(at::zeros({3}), at::zeros({3})); }));
  CHECK(refused([&] { group.allReduceSum({}); }));
  CHECK(refused([&] { group.broadcast(two, 2); }));
  CHECK(refused([&] { group.exchange({{group.rank(), two}}, {}); }));
  CHECK(refused([&] { group.exchange({}, {{2, two}}); }));
  CHECK_FALSE(rank.mesh().used());
  // Nothing was sent, and nothing has ended.
  testing::everyOperation(group, at::kCPU);
  CHECK(rank.mesh().used());
}

TEST_CASE("process group: an argument that no rank could mean is refused before anything is sent", "[mesh]") {
  Ranks("rank with wrong arguments", {.degrees = {.tp = 2}}).requireSuccess();
}

TEST_CASE("rank that records", "[.][child]") {
  ChildRank rank;
  ProcessGroup& group = rank.mesh().world();
  const at::Tensor tensor = at::full({2, 3}, 1.0F);
  group.allReduceSum(tensor).wait();
  const int other = 1 - group.rank();
  const at::Tensor received = at::zeros({2, 3});
  group.exchange({{other, tensor}}, {{other, received}}).wait();
  Pending pending = group.broadcast(tensor, 0);
  rank.stopHere();
  pending.wait();
  rank.stopHere();
}

TEST_CASE("process group: the flight recorder has each operation, and which of them is under way", "[mesh]") {
  Ranks ranks("rank that records", {.degrees = {.ulysses = 2}});
  for (size_t rank = 0; rank < 2; ++rank)
    REQUIRE(ranks.next(rank) == "here");
  for (uint32_t rank = 0; rank < 2; ++rank) {
    const std::vector<Operation> operations = ranks.recorder().operations(Rank(rank));
    REQUIRE(operations.size() == 3);
    CHECK(operations[0].kind == "all_reduce");
    CHECK(operations[0].group == "ulysses");
    CHECK(operations[0].sequence == 1);
    CHECK(operations[0].dtype == DType::kFloat32);
    CHECK(operations[0].shape == std::vector<int64_t>{2, 3});
    CHECK(operations[0].bytes_sent == 24);
    CHECK(operations[0].submitted_ns > 0);
    CHECK(operations[0].done_ns >= operations[0].submitted_ns);
    CHECK(operations[1].kind == "exchange");
    CHECK(operations[1].group == "ulysses.p2p");
    CHECK(operations[1].sequence == 1);
    CHECK(operations[1].bytes_sent == 24);
    CHECK(operations[2].kind == "broadcast");
    CHECK(operations[2].sequence == 2);
    CHECK(operations[2].bytes_sent == (rank == 0 ? 24 : 0));
    CHECK(operations[2].done_ns == 0);
    ranks.send(rank, "go");
  }
  for (uint32_t rank = 0; rank < 2; ++rank) {
    REQUIRE(ranks.next(rank) == "here");
    CHECK(ranks.recorder().operations(Rank(rank))[2].done_ns > 0);
    ranks.send(rank, "go");
  }
  ranks.requireSuccess();
}

}  // namespace latentd::mesh
