#pragma once

#include <random>
#include <string>
#include <vector>

#include "channel/channel.h"

namespace latentd::channel::testing {

// One way to move a tensor from P ranks to C ranks, drawn at random, with what every rank must publish and get. The
// same draw in several processes gives the same case.
struct ReshardCase {
  uint32_t producers = 1;
  uint32_t consumers = 1;
  std::optional<int32_t> producer_dim;
  std::optional<int32_t> consumer_dim;
  std::vector<int64_t> shape;             // the whole tensor
  std::vector<int64_t> producer_extents;  // along producer_dim, or in the unit of producer_tokens; zeros happen
  // In token layout: dimension 1 of three is a grid, and these cut it.
  std::optional<TokenGrid> grid;
  TokenCut producer_tokens = TokenCut::kNone;
  TokenCut consumer_tokens = TokenCut::kNone;

  static ReshardCase make(std::mt19937& random);
  static ReshardCase makeTokens(std::mt19937& random);
  ChannelSpec spec(ChannelSpec base) const;
  std::string describe() const;

  // What producer rank p publishes: its part of a tensor whose elements tell their place and number.
  ArtifactTree published(uint32_t p, uint64_t number) const;
  // Bytes that consumer rank c overlaps.
  uint64_t bytesOf(uint32_t c) const;
  bool check(const ArtifactTree& got, uint32_t c, uint64_t number) const;

 private:
  TensorView full(uint64_t number) const;
  TokenPart tokensPublished(uint32_t p) const;
  TokenPart tokensOf(uint32_t c) const;
  TensorView partOf(uint32_t c, uint64_t number) const;
};

}  // namespace latentd::channel::testing
