#pragma once

#include <cstdint>
#include <string_view>

namespace latentd {

// What each rank of a group holds of a video in token layout. The numbers go over the wire (proto/channel.proto,
// proto/worker.proto).
enum class TokenCut : uint8_t {
  kNone = 0,    // all of it
  kTokens = 1,  // a run of tokens
  kRows = 2,    // a run of rows, of every frame
};
inline constexpr TokenCut kTokenCutMax = TokenCut::kRows;

// "none", "tokens", "rows".
std::string_view toString(TokenCut cut);

}  // namespace latentd
