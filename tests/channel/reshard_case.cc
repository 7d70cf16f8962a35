#include "tests/channel/reshard_case.h"

#include "channel/transfer_plan.h"
#include "tests/channel/tensors.h"

namespace latentd::channel::testing {
namespace {

int64_t draw(std::mt19937& random, int64_t least, int64_t most) {
  return std::uniform_int_distribution<int64_t>(least, most)(random);
}

std::string text(const std::vector<int64_t>& values) {
  std::string joined;
  for (const int64_t value : values)
    joined += std::to_string(value) + " ";
  return joined;
}

std::string text(const std::optional<int32_t>& dim) { return dim ? std::to_string(*dim) : "none"; }

}  // namespace

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
  return base;
}

std::string ReshardCase::describe() const {
  return std::to_string(producers) + " ranks (dim " + text(producer_dim) + ", extents " + text(producer_extents) +
         ") to " + std::to_string(consumers) + " (dim " + text(consumer_dim) + "), shape " + text(shape);
}

TensorView ReshardCase::full(uint64_t number) const { return floats(shape, static_cast<float>(1000 * number)); }

ArtifactTree ReshardCase::published(uint32_t p, uint64_t number) const {
  TensorView part = full(number);
  if (producer_dim) {
    int64_t begin = 0;
    for (uint32_t q = 0; q < p; ++q)
      begin += producer_extents[q];
    part = slice(part, *resolveDim(producer_dim, shape.size()), begin, begin + producer_extents[p]);
  }
  return dict({{"x", leaf(part)}, {"number", ArtifactTree::Value(static_cast<int64_t>(number))}});
}

TensorView ReshardCase::partOf(uint32_t c, uint64_t number) const {
  const TensorView whole = full(number);
  const auto along = resolveDim(consumer_dim, shape.size());
  if (!along) return whole;
  const Range range = splitRange(shape[*along], consumers, c);
  return slice(whole, *along, range.begin, range.end);
}

uint64_t ReshardCase::bytesOf(uint32_t c) const { return byteCount(partOf(c, 0)); }

bool ReshardCase::check(const ArtifactTree& got, uint32_t c, uint64_t number) const {
  const TensorView wanted = partOf(c, number);
  const TensorView& part = tensorAt(got, "x");
  return part.shape == wanted.shape && elementsOf<float>(part) == elementsOf<float>(wanted) &&
         *got.find("number")->getIf<int64_t>() == static_cast<int64_t>(number);
}

}  // namespace latentd::channel::testing
