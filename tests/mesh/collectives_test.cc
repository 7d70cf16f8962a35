#include "mesh/collectives.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>

#include "tests/mesh/ranks.h"
#include "tests/support/catch.h"

namespace latentd::mesh {
namespace {

using testing::ChildRank;
using testing::Ranks;

at::Tensor valuesOf(int rank, at::IntArrayRef shape) {
  return at::arange(c10::multiply_integers(shape)).view(shape).to(at::kFloat).add_(1000 * rank);
}

}  // namespace

TEST_CASE("rank that gathers tensors", "[.][child]") {
  ChildRank rank;
  ProcessGroup& group = rank.mesh().world();
  const std::vector<int64_t> shape{2, 3, 4};
  std::vector<at::Tensor> all;
  for (int each = 0; each < group.size(); ++each)
    all.push_back(valuesOf(each, shape));
  const at::Tensor mine = all[group.rank()];

  const at::Tensor stacked = allGatherStacked(group, mine);
  CHECK(stacked.is_contiguous());
  CHECK(stacked.equal(at::stack(all)));
  for (int64_t dim = -3; dim < 3; ++dim) {
    INFO("along " << dim);
    CHECK(allGatherCat(group, mine, dim).equal(at::cat(all, dim)));
  }
  // Along the first dimension the buffer of the ranks is the result.
  CHECK(allGatherCat(group, mine, 0).storage().nbytes() == group.size() * mine.nbytes());
  CHECK(allGatherCat(group, mine, 0).is_contiguous());
  // A view is gathered as what it shows.
  CHECK(allGatherStacked(group, mine.transpose(0, 2)).equal(at::stack(all).transpose(1, 3)));
  std::vector<int64_t> squares;
  for (int64_t each = 0; each < group.size(); ++each)
    squares.push_back(each * each - 1);
  CHECK(allGatherInt(group, squares[group.rank()], at::kCPU) == squares);
}

TEST_CASE("collectives: gather stacks, and concatenates along any dimension in rank order", "[mesh]") {
  const uint32_t ranks = GENERATE(1u, 2u, 3u);
  Ranks("rank that gathers tensors", {.degrees = {.tp = ranks}}).requireSuccess();
}

TEST_CASE("rank that reduces several tensors", "[.][child]") {
  ChildRank rank;
  ProcessGroup& group = rank.mesh().world();
  std::vector<at::Tensor> tensors;
  for (int64_t i = 1; i <= 4; ++i)
    tensors.push_back(at::full({i, 3}, static_cast<double>(i * (group.rank() + 1)), at::kDouble));
  allReduceSum_(group, tensors);
  for (int64_t i = 1; i <= 4; ++i)
    CHECK(tensors[i - 1].equal(at::full({i, 3}, static_cast<double>(i * 3), at::kDouble)));
  rank.stopHere();
}

TEST_CASE("collectives: reductions of a group are all submitted before one is waited for", "[mesh]") {
  Ranks ranks("rank that reduces several tensors", {.degrees = {.tp = 2}});
  for (uint32_t rank = 0; rank < 2; ++rank) {
    REQUIRE(ranks.next(rank) == "here");
    const std::vector<Operation> operations = ranks.recorder().operations(Rank(rank));
    REQUIRE(operations.size() == 4);
    for (const Operation& operation : operations) {
      CHECK(operation.kind == "all_reduce");
      CHECK(operations.back().submitted_ns <= operation.done_ns);
    }
    ranks.send(rank, "go");
  }
  ranks.requireSuccess();
}

TEST_CASE("collectives: a rank that is alone copies nothing", "[mesh]") {
  ProcessGroup alone;
  const at::Tensor tensor = valuesOf(0, {2, 3});
  CHECK(allGatherCat(alone, tensor, 1).data_ptr() == tensor.data_ptr());
  CHECK(allGatherStacked(alone, tensor).data_ptr() == tensor.data_ptr());
  CHECK(allGatherStacked(alone, tensor).sizes() == at::IntArrayRef({1, 2, 3}));
  const at::Tensor before = tensor.clone();
  allReduceSum_(alone, {tensor});
  CHECK(tensor.equal(before));
  CHECK(allGatherInt(alone, 7, at::kCPU) == std::vector<int64_t>{7});
}

}  // namespace latentd::mesh
