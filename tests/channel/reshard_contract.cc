#include <random>

#include "channel/transfer_plan.h"
#include "tests/channel/channel_contract.h"
#include "tests/channel/reshard_case.h"
#include "tests/channel/tensors.h"
#include "tests/support/catch.h"

namespace latentd::channel::testing {
namespace {

void cutsForConsumers(const ContractBackend& backend) {
  ChannelSpec spec = smallSpec();
  spec.consumer_ranks = 3;
  spec.consumer_shard_dim = -2;
  Rig rig(backend, spec);
  const TensorView tensor = floats({2, 7, 4});
  TensorView whole = longs({2, 7, 4});
  whole.whole = true;
  // A vector has no dimension -2: every rank gets it.
  REQUIRE(rig.publish(0, dict({{"x", leaf(tensor)}, {"whole", leaf(whole)}, {"vector", leaf(bytes({9}))}})).ok());
  const int64_t begins[] = {0, 3, 5, 7};
  for (uint32_t c = 0; c < 3; ++c) {
    const auto got = rig.receive(0, c);
    REQUIRE(got.status().ToString() == "OK");
    CHECK(elementsOf<float>(tensorAt(*got, "x")) == elementsOf<float>(slice(tensor, 1, begins[c], begins[c + 1])));
    CHECK(elementsOf<int64_t>(tensorAt(*got, "whole")) == elementsOf<int64_t>(whole));
    CHECK(tensorAt(*got, "vector").shape == Shape{9});
    const auto rows = static_cast<uint64_t>(begins[c + 1] - begins[c]);
    CHECK(rig.consumer(c).stats().bytes_read == 2 * rows * 4 * 4 + 2 * 7 * 4 * 8 + 9);
  }
  // One logical tensor crossed, not one for each consumer.
  CHECK(rig.producer().stats().bytes_staged == 2 * 7 * 4 * 4 + 2 * 7 * 4 * 8 + 9);
}

void publishesReplicasOnce(const ContractBackend& backend) {
  ChannelSpec spec = smallSpec();
  spec.producer_ranks = 2;
  Rig rig(backend, spec);
  REQUIRE(rig.publish(0, leaf(floats({4}, 1)), 1).ok());  // a replica: nothing happens
  REQUIRE(rig.producer(1).abort(SequenceNumber(1), absl::CancelledError("")).ok());
  REQUIRE(rig.publish(0, leaf(floats({4}, 2)), 0).ok());
  const auto got = rig.receive(0);
  REQUIRE(got.ok());
  CHECK(elementsOf<float>(*got->getIf<TensorView>())[0] == 2);
  CHECK(rig.producer(1).stats().published == 0);
}

// Random cases; every consumer rank gets its part and reads no byte more.
void reshardsAs(const ContractBackend& backend, ReshardCase (*make)(std::mt19937&)) {
  const uint32_t seed = testSeed();
  CAPTURE(seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 25; ++round) {
    const ReshardCase reshard = make(random);
    CAPTURE(reshard.describe());
    Rig rig(backend, reshard.spec(smallSpec()));
    for (uint64_t number = 0; number < 2; ++number) {
      for (uint32_t p = 0; p < reshard.producers; ++p)
        REQUIRE(rig.publish(number, reshard.published(p, number), p).ok());
      for (uint32_t c = 0; c < reshard.consumers; ++c) {
        const auto got = rig.receive(number, c);
        REQUIRE(got.status().ToString() == "OK");
        REQUIRE(reshard.check(*got, c, number));
        REQUIRE(rig.consumer(c).stats().bytes_read == (number + 1) * reshard.bytesOf(c));
      }
    }
  }
}

void reshards(const ContractBackend& backend) { reshardsAs(backend, &ReshardCase::make); }
void reshardsTokens(const ContractBackend& backend) { reshardsAs(backend, &ReshardCase::makeTokens); }

// A token-sharded producer and a height-sharded consumer: what a padded sequence of 105 tokens on four ranks looks
// like.
ChannelSpec tokensToRows() {
  ChannelSpec spec = smallSpec();
  spec.producer_ranks = 4;
  spec.consumer_ranks = 2;
  spec.producer_tokens = TokenCut::kTokens;
  spec.consumer_tokens = TokenCut::kRows;
  return spec;
}

constexpr TokenGrid kGrid{3, 5, 7};

// [1, held tokens, 2]; each element is its number in the whole tensor.
TensorView tokenShare(TokenCut cut, uint32_t ranks, uint32_t rank) {
  const TokenPart part = shareOf(1, kGrid, cut, ranks, rank);
  TensorView view = floats({1, part.tokens(), 2}, static_cast<float>(2 * part.held.begin));
  view.tokens = part;
  return view;
}

void copiesRunsOfRows(const ContractBackend& backend) {
  Rig rig(backend, tokensToRows());
  // A leaf without a grid comes from rank 0, whole.
  for (uint32_t p = 0; p < 4; ++p) {
    REQUIRE(rig.publish(0, dict({{"x", leaf(tokenShare(TokenCut::kTokens, 4, p))}, {"y", leaf(bytes({9}))}}), p).ok());
  }
  const Range rows[] = {{0, 3}, {3, 5}};
  for (uint32_t c = 0; c < 2; ++c) {
    const auto got = rig.receive(0, c);
    REQUIRE(got.status().ToString() == "OK");
    std::vector<float> expected;
    for (int64_t i = 0; i < kGrid.tokens() * 2; ++i) {
      const int64_t row = i / 2 / kGrid.columns % kGrid.rows;
      if (row >= rows[c].begin && row < rows[c].end) expected.push_back(static_cast<float>(i));
    }
    const TensorView& part = tensorAt(*got, "x");
    CHECK(part.shape == Shape{1, 3 * rows[c].size() * 7, 2});
    CHECK(part.tokens == TokenPart{1, kGrid, TokenCut::kRows, rows[c]});
    CHECK(elementsOf<float>(part) == expected);
    CHECK(tensorAt(*got, "y").shape == Shape{9});
    CHECK(rig.consumer(c).stats().bytes_read == expected.size() * sizeof(float) + 9);
  }
}

void doesNotReadRanksWithoutItsRows(const ContractBackend& backend) {
  ChannelSpec spec = tokensToRows();
  spec.producer_ranks = 3;  // rows 0 and 1, 2 and 3, and 4
  spec.consumer_ranks = 5;  // a row each
  spec.producer_tokens = TokenCut::kRows;
  spec.consumer_tokens = TokenCut::kRows;
  Rig rig(backend, spec);
  for (uint32_t p = 0; p < 3; ++p) {
    const TokenPart part = shareOf(1, kGrid, TokenCut::kRows, 3, p);
    TensorView view = floats({1, part.tokens(), 2});
    view.tokens = part;
    REQUIRE(rig.publish(0, leaf(view), p).ok());
  }
  for (uint32_t c = 0; c < 5; ++c)
    REQUIRE(rig.receive(0, c).ok());
  for (uint32_t p = 0; p < 3; ++p) {
    CAPTURE(p);
    REQUIRE(eventually([&] { return rig.producer(p).stats().slots_in_use == 0; }));
    // Who needs other rows acknowledges that it read nothing.
    const uint64_t readers = p < 2 ? 2 : 1;
    CHECK(rig.producer(p).stats().copied_acks == readers);
    CHECK(rig.producer(p).stats().discarded_acks == 5 - readers);
  }
}

void lendsNoRunsOfRows(const ContractBackend& backend) {
  ChannelSpec spec = tokensToRows();
  spec.producer_ranks = 1;
  spec.producer_tokens = TokenCut::kNone;
  Rig rig(backend, spec);
  WaitOptions wait = patient();
  REQUIRE(rig.publish(0, leaf(tokenShare(TokenCut::kNone, 1, 0))).ok());
  CHECK(rig.consumer(0).borrow(SequenceNumber(0), wait).status().code() == absl::StatusCode::kFailedPrecondition);
  REQUIRE(rig.receive(0, 0).ok());
  REQUIRE(rig.receive(0, 1).ok());
  // Rows of one frame lie together.
  TensorView frame = floats({1, 35, 2});
  frame.tokens = TokenPart::whole(1, {1, 5, 7});
  REQUIRE(rig.publish(1, leaf(frame)).ok());
  for (uint32_t c = 0; c < 2; ++c) {
    auto borrowed = rig.consumer(c).borrow(SequenceNumber(1), wait);
    REQUIRE(borrowed.status().ToString() == "OK");
    const TensorView& view = *borrowed->tree().getIf<TensorView>();
    CHECK(view.shape == Shape{1, c == 0 ? 21 : 14, 2});
    CHECK(elementsOf<float>(view)[0] == (c == 0 ? 0 : 42));
  }
}

void refusesTokensThatDoNotFit(const ContractBackend& backend) {
  ChannelSpec spec = tokensToRows();
  spec.producer_ranks = 2;
  Rig rig(backend, spec);
  const TensorView first = tokenShare(TokenCut::kTokens, 2, 0);
  // What is wrong on one rank alone is refused there, and the number stays open.
  TensorView longer = first;
  longer.tokens->held.end += 1;
  CHECK(rig.publish(0, leaf(longer), 0).code() == absl::StatusCode::kInvalidArgument);
  CHECK(rig.publish(0, leaf(tokenShare(TokenCut::kRows, 2, 0)), 0).code() == absl::StatusCode::kInvalidArgument);
  CHECK(rig.publish(0, leaf(tokenShare(TokenCut::kNone, 1, 0)), 0).code() == absl::StatusCode::kInvalidArgument);
  // What does not fit together ends the artifact, not the channel: the same part twice, then ranks in the wrong order.
  REQUIRE(rig.publish(0, leaf(first), 0).ok());
  REQUIRE(rig.publish(0, leaf(first), 1).ok());
  REQUIRE(rig.publish(1, leaf(tokenShare(TokenCut::kTokens, 2, 1)), 0).ok());
  REQUIRE(rig.publish(1, leaf(first), 1).ok());
  for (uint64_t number = 0; number < 2; ++number) {
    for (uint32_t c = 0; c < 2; ++c)
      CHECK(rig.receive(number, c).status().code() == absl::StatusCode::kInternal);
  }
  for (uint32_t p = 0; p < 2; ++p)
    REQUIRE(rig.publish(2, leaf(tokenShare(TokenCut::kTokens, 2, p)), p).ok());
  for (uint32_t c = 0; c < 2; ++c)
    CHECK(rig.receive(2, c).ok());
}

void refusesToLendPieces(const ContractBackend& backend) {
  ChannelSpec spec = smallSpec();
  spec.producer_ranks = 2;
  spec.producer_shard_dim = 0;
  Rig rig(backend, spec);
  WaitOptions wait = patient();
  REQUIRE(rig.publish(0, leaf(floats({2, 2}, 0)), 0).ok());
  REQUIRE(rig.publish(0, leaf(floats({1, 2}, 4)), 1).ok());
  CHECK(rig.consumer().borrow(SequenceNumber(0), wait).status().code() == absl::StatusCode::kFailedPrecondition);
  const auto got = rig.receive(0);
  REQUIRE(got.ok());
  CHECK(elementsOf<float>(*got->getIf<TensorView>()) == std::vector<float>{0, 1, 2, 3, 4, 5});
  // One rank holds everything: no pieces.
  REQUIRE(rig.publish(1, leaf(floats({2, 2}, 0)), 0).ok());
  REQUIRE(rig.publish(1, leaf(floats({0, 2})), 1).ok());
  auto borrowed = rig.consumer().borrow(SequenceNumber(1), wait);
  REQUIRE(borrowed.status().ToString() == "OK");
  CHECK(elementsOf<float>(*borrowed->tree().getIf<TensorView>()) == std::vector<float>{0, 1, 2, 3});
}

void endsArtifactsThatDoNotFit(const ContractBackend& backend) {
  ChannelSpec spec = smallSpec();
  spec.producer_ranks = 2;
  spec.producer_shard_dim = 0;
  Rig rig(backend, spec);
  const std::pair<ArtifactTree, ArtifactTree> pairs[] = {
      {leaf(floats({2, 3})), leaf(floats({2, 4}))},                 // another width
      {leaf(floats({2, 3})), leaf(floats({2, 3, 1}))},              // another rank
      {leaf(floats({2, 3})), leaf(longs({2, 3}))},                  // another dtype
      {leaf(floats({2, 3})), dict({{"x", leaf(floats({2, 3}))}})},  // another structure
      {leaf(floats({2, 3})), ArtifactTree::Value(int64_t{1})},      // no tensor
  };
  uint64_t number = 0;
  for (const auto& [first, second] : pairs) {
    CAPTURE(number);
    REQUIRE(rig.publish(number, first, 0).ok());
    REQUIRE(rig.publish(number, second, 1).ok());
    CHECK(rig.receive(number).status().code() == absl::StatusCode::kInternal);
    ++number;
  }
  REQUIRE(rig.publish(number, leaf(floats({2, 3})), 0).ok());
  REQUIRE(rig.publish(number, leaf(floats({1, 3})), 1).ok());
  CHECK(rig.receive(number).ok());
}

void oneAbortEndsTheNumberForAll(const ContractBackend& backend) {
  ChannelSpec spec = smallSpec();
  spec.producer_ranks = 2;
  spec.producer_shard_dim = 0;
  Rig rig(backend, spec);
  REQUIRE(rig.publish(0, leaf(floats({2})), 0).ok());
  REQUIRE(rig.producer(1).abort(SequenceNumber(0), absl::InternalError("rank 1 broke")).ok());
  CHECK(rig.receive(0).status().code() == absl::StatusCode::kInternal);
  CHECK(eventually([&] { return rig.producer(0).stats().slots_in_use == 0; }));
  CHECK(rig.producer(0).stats().discarded_acks == 1);
  // Aborted first, published later: still given back.
  REQUIRE(rig.producer(1).abort(SequenceNumber(1), absl::InternalError("again")).ok());
  CHECK(rig.receive(1).status().code() == absl::StatusCode::kInternal);
  REQUIRE(rig.publish(1, leaf(floats({2})), 0).ok());
  CHECK(eventually([&] { return rig.producer(0).stats().slots_in_use == 0; }));
  CHECK(eventually([&] { return rig.consumer().stats().pending == 0; }));
}

}  // namespace

std::vector<ContractCase> reshardContract() {
  return {
      {"consumer ranks read their slices, uneven ones too [C7]", cutsForConsumers},
      {"a replicated producer publishes from one rank", publishesReplicasOnce},
      {"P ranks to C ranks: each reads its overlaps and no byte more [C7]", reshards},
      {"P ranks to C ranks in token layout: each reads its runs and no byte more [C7][C18]", reshardsTokens},
      {"rows of every frame come out of a sequence that is cut anywhere [C7][C18]", copiesRunsOfRows},
      {"ranks that hold none of a consumer's rows are not read [C7]", doesNotReadRanksWithoutItsRows},
      {"token parts that do not tile their grid end the artifact, not the channel [C18]", refusesTokensThatDoNotFit},
      {"rows of several frames are not lent, rows of one are", lendsNoRunsOfRows, true},
      {"what lies in several slots is not lent", refusesToLendPieces, true},
      {"ranks that publish what does not fit end the artifact, not the channel", endsArtifactsThatDoNotFit},
      {"an abort by one rank ends the number for all", oneAbortEndsTheNumberForAll},
  };
}

}  // namespace latentd::channel::testing
