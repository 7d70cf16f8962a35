#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <string>

namespace latentd {

// An integer that mixes with no other: Tag makes the type, Rep holds it.
template <class Tag, class Rep>
struct StrongId {
  Rep value{};

  constexpr StrongId() = default;
  constexpr explicit StrongId(Rep initial) : value(initial) {}
  friend constexpr auto operator<=>(const StrongId&, const StrongId&) = default;
};

// Position of a worker inside its group, 0-based.
using Rank = StrongId<struct RankTag, uint32_t>;
// Incarnation of a group; 1 at first start, raised at each respawn.
using Epoch = StrongId<struct EpochTag, uint64_t>;
// Artifact counter of one edge, 0-based, in the order in which commands promised them.
using SequenceNumber = StrongId<struct SequenceNumberTag, uint64_t>;
// Position of a slot inside a pool, 0-based.
using SlotIndex = StrongId<struct SlotIndexTag, uint32_t>;
// Publication counter of one slot; 0 means never published.
using Generation = StrongId<struct GenerationTag, int64_t>;

using JobId = std::string;

}  // namespace latentd

template <class Tag, class Rep>
struct std::hash<latentd::StrongId<Tag, Rep>> {
  size_t operator()(const latentd::StrongId<Tag, Rep>& id) const noexcept { return std::hash<Rep>{}(id.value); }
};
