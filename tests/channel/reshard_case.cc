#include "tests/channel/reshard_case.h"

#include <numeric>

#include "channel/transfer_plan.h"
#include "tests/channel/draw.h"
#include "tests/channel/tensors.h"

namespace latentd::channel::testing {
namespace {

std::string text(const std::vector<int64_t>& values) {
  std::string joined;
  for (const int64_t value : values)
    joined += std::to_string(value) + " ";
  return joined;
}

std::string text(const std::optional<int32_t>& dim) { return dim ? std::to_string(*dim) : "none"; }

// The tokens of a part, out of the whole tensor [outer, tokens, inner].
TensorView gather(const TensorView& whole, const TokenPart& part) {
  const std::vector<float> all = elementsOf<float>(whole);
  TensorView gathered = floats({whole.shape[0], part.tokens(), whole.shape[2]});
  auto* to = static_cast<float*>(gathered.data);
  for (size_t i = 0; i < all.size(); ++i) {
    const int64_t token = static_cast<int64_t>(i) / whole.shape[2] % whole.shape[1];
    const int64_t row = token / part.grid.columns % part.grid.rows;
    const int64_t counted = part.cut == TokenCut::kRows ? row : token;
    if (counted >= part.held.begin && counted < part.held.end) *to++ = all[i];
  }
  gathered.tokens = part;
  return gathered;
}

}  // namespace

ReshardCase ReshardCase::makeTokens(std::mt19937& random) {
  ReshardCase made;
  made.producers = static_cast<uint32_t>(draw(random, 1, 4));
  made.consumers = static_cast<uint32_t>(draw(random, 1, 4));
  made.grid = TokenGrid{draw(random, 1, 4), draw(random, 1, 6), draw(random, 1, 5)};
  made.shape = {draw(random, 1, 2), made.grid->tokens(), draw(random, 1, 4)};
  made.producer_tokens = static_cast<TokenCut>(draw(random, 0, 2));
  made.consumer_tokens = static_cast<TokenCut>(draw(random, 0, 2));
  // Equal shares, as a padded sequence is cut, or any sizes.
  const bool equal = draw(random, 0, 1) == 0;
  int64_t left = made.producer_tokens == TokenCut::kRows ? made.grid->rows : made.grid->tokens();
  for (uint32_t p = 0; p < made.producers; ++p) {
    const TokenPart share = shareOf(1, *made.grid, made.producer_tokens, made.producers, p);
    const bool last = p + 1 == made.producers;
    made.producer_extents.push_back(equal ? share.held.size() : last ? left : draw(random, 0, left));
    left -= made.producer_extents.back();
  }
  return made;
}

ReshardCase ReshardCase::make(std::mt19937& random) {
  ReshardCase made;
  made.producers = static_cast<uint32_t>(draw(random, 1, 4));
  made.consumers = static_cast<uint32_t>(draw(random, 1, 4));
  const int64_t dimensions = draw(random, 1, 4);
  for (int64_t d = 0; d < dimensions; ++d)
    made.shape.push_back(draw(random, 0, 9) == 0 ? 0 : draw(random, 1, 7));
  const auto dim = [&]() -> std::optional<int32_t> {
    if (draw(random, 0, 4) == 0) return std::nullopt;
    return static_cast<int32_t>(draw(random, -dimensions, dimensions - 1));
  };
  made.producer_dim = dim();
  made.consumer_dim = dim();
  if (made.producer_dim) {
    const size_t along = *resolveDim(made.producer_dim, made.shape.size());
    made.shape[along] = 0;
    for (uint32_t p = 0; p < made.producers; ++p) {
      made.producer_extents.push_back(draw(random, 0, 4));
      made.shape[along] += made.producer_extents.back();
    }
  }
  return made;
}

ChannelSpec ReshardCase::spec(ChannelSpec base) const {
  base.producer_ranks = producers;
  base.consumer_ranks = consumers;
  base.producer_shard_dim = producer_dim;
  base.consumer_shard_dim = consumer_dim;
  base.producer_tokens = producer_tokens;
  base.consumer_tokens = consumer_tokens;
  return base;
}

std::string ReshardCase::describe() const {
  if (grid) {
    return std::to_string(producers) + " ranks (" + std::string(toString(producer_tokens)) + " " +
           text(producer_extents) + ") to " + std::to_string(consumers) + " (" +
           std::string(toString(consumer_tokens)) + "), grid " + toString(*grid) + " in " + text(shape);
  }
  return std::to_string(producers) + " ranks (dim " + text(producer_dim) + ", extents " + text(producer_extents) +
         ") to " + std::to_string(consumers) + " (dim " + text(consumer_dim) + "), shape " + text(shape);
}

TensorView ReshardCase::full(uint64_t number) const { return floats(shape, static_cast<float>(1000 * number)); }

TokenPart ReshardCase::tokensPublished(uint32_t p) const {
  if (producer_tokens == TokenCut::kNone) return TokenPart::whole(1, *grid);
  const int64_t begin = std::accumulate(producer_extents.begin(), producer_extents.begin() + p, int64_t{0});
  return {1, *grid, producer_tokens, {begin, begin + producer_extents[p]}};
}

TokenPart ReshardCase::tokensOf(uint32_t c) const { return shareOf(1, *grid, consumer_tokens, consumers, c); }

ArtifactTree ReshardCase::published(uint32_t p, uint64_t number) const {
  TensorView part = full(number);
  if (grid) {
    part = gather(part, tokensPublished(p));
  } else if (producer_dim) {
    const int64_t begin = std::accumulate(producer_extents.begin(), producer_extents.begin() + p, int64_t{0});
    part = slice(part, *resolveDim(producer_dim, shape.size()), begin, begin + producer_extents[p]);
  }
  return dict({{"x", leaf(part)}, {"number", ArtifactTree::Value(static_cast<int64_t>(number))}});
}

TensorView ReshardCase::partOf(uint32_t c, uint64_t number) const {
  const TensorView whole = full(number);
  if (grid) return gather(whole, tokensOf(c));
  const auto along = resolveDim(consumer_dim, shape.size());
  if (!along) return whole;
  const Range range = splitRange(shape[*along], consumers, c);
  return slice(whole, *along, range.begin, range.end);
}

uint64_t ReshardCase::bytesOf(uint32_t c) const { return byteCount(partOf(c, 0)); }

bool ReshardCase::check(const ArtifactTree& got, uint32_t c, uint64_t number) const {
  const TensorView wanted = partOf(c, number);
  const TensorView& part = tensorAt(got, "x");
  return part.shape == wanted.shape && part.tokens == wanted.tokens &&
         elementsOf<float>(part) == elementsOf<float>(wanted) &&
         *got.find("number")->getIf<int64_t>() == static_cast<int64_t>(number);
}

}  // namespace latentd::channel::testing
