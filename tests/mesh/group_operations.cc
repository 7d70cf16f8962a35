#include "tests/mesh/group_operations.h"

#include <vector>

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>

#include "tests/mesh/ranks.h"
#include "tests/support/catch.h"

namespace latentd::mesh::testing {
namespace {

// What rank r has: small integers, which every dtype holds, and sums of them.
at::Tensor valuesOf(int rank, at::IntArrayRef shape, at::TensorOptions options) {
  at::Tensor values = at::arange(c10::multiply_integers(shape), at::TensorOptions(at::kLong).device(options.device()));
  return values.mul(rank + 1).remainder(13).view(shape).to(options.dtype());
}

std::vector<at::Tensor> valuesOfAll(int ranks, at::IntArrayRef shape, at::TensorOptions options) {
  std::vector<at::Tensor> all;
  for (int rank = 0; rank < ranks; ++rank)
    all.push_back(valuesOf(rank, shape, options));
  return all;
}

int64_t given(const ProcessGroup& group) { return static_cast<int64_t>(group.bytesSent()); }

void checkAllGather(ProcessGroup& group, at::TensorOptions options) {
  const at::Tensor output = at::empty({group.size() * 3, 5}, options);
  const int64_t before = given(group);
  group.allGather(output, valuesOf(group.rank(), {3, 5}, options)).wait();
  CHECK(output.equal(at::cat(valuesOfAll(group.size(), {3, 5}, options))));
  CHECK(given(group) - before == (group.size() - 1) * 15 * output.element_size());
}

void checkAllReduceSum(ProcessGroup& group, at::TensorOptions options) {
  const at::Tensor tensor = valuesOf(group.rank(), {8, 3}, options);
  const int64_t before = given(group);
  group.allReduceSum(tensor).wait();
  CHECK(tensor.equal(at::stack(valuesOfAll(group.size(), {8, 3}, options)).sum(0).to(options.dtype())));
  CHECK(given(group) - before == 2 * (group.size() - 1) * 24 * tensor.element_size() / group.size());
}

void checkAllToAll(ProcessGroup& group, at::TensorOptions options) {
  const int64_t size = group.size();
  const at::Tensor output = at::empty({size * 2, 3}, options);
  const int64_t before = given(group);
  group.allToAll(output, valuesOf(group.rank(), {size * 2, 3}, options)).wait();
  for (int from = 0; from < size; ++from) {
    const at::Tensor theirs = valuesOf(from, {size * 2, 3}, options);
    CHECK(output.slice(0, 2 * from, 2 * from + 2).equal(theirs.slice(0, 2 * group.rank(), 2 * group.rank() + 2)));
  }
  CHECK(given(group) - before == (size - 1) * 6 * output.element_size());
}

void checkBroadcast(ProcessGroup& group, at::TensorOptions options) {
  for (int root = 0; root < group.size(); ++root) {
    const at::Tensor tensor = valuesOf(group.rank(), {7}, options);
    const int64_t before = given(group);
    group.broadcast(tensor, root).wait();
    CHECK(tensor.equal(valuesOf(root, {7}, options)));
    const int64_t expected = root == group.rank() ? (group.size() - 1) * 7 * tensor.element_size() : 0;
    CHECK(given(group) - before == expected);
  }
}

// To every peer two messages of one size and one of another, all in one batch, of sizes that no other pair uses.
void checkExchange(ProcessGroup& group, at::TensorOptions options) {
  const auto elements = [](int from, int to) { return int64_t{1 + 3 * from + 11 * to}; };
  std::vector<PeerTensor> sends, receives;
  int64_t bytes = 0;
  for (int peer = 0; peer < group.size(); ++peer) {
    if (peer == group.rank()) continue;
    const int64_t to = elements(group.rank(), peer), from = elements(peer, group.rank());
    sends.push_back({peer, valuesOf(group.rank(), {to}, options)});
    sends.push_back({peer, valuesOf(group.rank() + 20, {to}, options)});
    sends.push_back({peer, valuesOf(group.rank() + 40, {2, to}, options)});
    bytes += 4 * to * sends.back().tensor.element_size();
    for (const int64_t rows : {1, 1, 2})
      receives.push_back({peer, at::empty({rows * from}, options)});
  }
  const int64_t before = given(group);
  group.exchange(sends, receives).wait();
  for (size_t i = 0; i < receives.size(); i += 3) {
    const int peer = receives[i].peer;
    const int64_t from = elements(peer, group.rank());
    CHECK(receives[i].tensor.equal(valuesOf(peer, {from}, options)));
    CHECK(receives[i + 1].tensor.equal(valuesOf(peer + 20, {from}, options)));
    CHECK(receives[i + 2].tensor.equal(valuesOf(peer + 40, {2, from}, options).flatten()));
  }
  CHECK(given(group) - before == bytes);
}

// Many at once, waited for in another order than they were submitted in.
void checkOverlap(ProcessGroup& group, at::TensorOptions options) {
  std::vector<at::Tensor> outputs;
  std::vector<Pending> pending;
  for (int i = 0; i < 8; ++i) {
    outputs.push_back(at::empty({group.size(), 4}, options));
    pending.push_back(group.allGather(outputs.back(), valuesOf(group.rank() + i, {1, 4}, options)));
  }
  for (size_t i = 8; i-- > 0;) {
    pending[i].wait();
    for (int rank = 0; rank < group.size(); ++rank)
      CHECK(outputs[i][rank].equal(valuesOf(rank + static_cast<int>(i), {1, 4}, options)[0]));
  }
}

}  // namespace

void everyOperation(ProcessGroup& group, at::Device device) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kLong}) {
    INFO(c10::toString(dtype));
    const at::TensorOptions options = at::TensorOptions(dtype).device(device);
    checkAllGather(group, options);
    checkAllReduceSum(group, options);
    checkAllToAll(group, options);
    checkBroadcast(group, options);
    checkExchange(group, options);
    checkOverlap(group, options);
  }
}

TEST_CASE("rank that does every group operation", "[.][child]") {
  ChildRank rank;
  everyOperation(rank.mesh().world(), rank.device());
}

TEST_CASE("rank that does so in smaller and smaller groups", "[.][child]") {
  ChildRank rank;
  everyOperation(rank.mesh().world(), rank.device());
  rank.remake({.dp = 4});
  if (rank.rank() < 4) everyOperation(rank.mesh().world(), rank.device());
  rank.remake({.cfg = 3});
  if (rank.rank() < 3) everyOperation(rank.mesh().world(), rank.device());
  rank.remake({.ring = 2});
  if (rank.rank() < 2) everyOperation(rank.mesh().world(), rank.device());
}

}  // namespace latentd::mesh::testing
