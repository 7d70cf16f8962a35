#pragma once

#include <array>
#include <string_view>

#include "runtime/base/state_machine.h"

// The states of PROTOCOL.md, as tables: the code moves only along them and the kill tests enumerate them.
namespace latentd::channel {

// A slot, as its producer sees it.
enum class SlotState {
  kFree,       // nobody reads it; may be taken
  kFilling,    // publish() holds it; no consumer knows
  kPublished,  // carries a generation that some consumer rank has not acknowledged
};

inline constexpr std::array kSlotStates{SlotState::kFree, SlotState::kFilling, SlotState::kPublished};

inline constexpr TransitionTable<SlotState, 4> kSlotTransitions{{
    {SlotState::kFree, SlotState::kFilling, "publish() took it"},
    {SlotState::kFilling, SlotState::kPublished, "the generation was stored"},
    {SlotState::kFilling, SlotState::kFree, "the publication failed or was cancelled"},
    {SlotState::kPublished, SlotState::kFree, "every consumer rank acknowledged"},
}};
static_assert(isWellFormed(kSlotTransitions));

// A number, as one consumer rank sees it.
enum class ArtifactState {
  kAwaited,     // a publishing rank's record is missing
  kArrived,     // every record is here
  kCopying,     // receive() reads the slots
  kBorrowed,    // lent to the caller
  kDiscarding,  // will not be read; records are acknowledged negatively as they come
  kEnded,       // acknowledged to every publishing rank
};

inline constexpr std::array kArtifactStates{ArtifactState::kAwaited,    ArtifactState::kArrived,
                                            ArtifactState::kCopying,    ArtifactState::kBorrowed,
                                            ArtifactState::kDiscarding, ArtifactState::kEnded};

inline constexpr TransitionTable<ArtifactState, 9> kArtifactTransitions{{
    {ArtifactState::kAwaited, ArtifactState::kArrived, "the last publishing rank's record came"},
    {ArtifactState::kAwaited, ArtifactState::kDiscarding, "discard(), or a rank aborted it"},
    {ArtifactState::kArrived, ArtifactState::kCopying, "receive()"},
    {ArtifactState::kArrived, ArtifactState::kBorrowed, "borrow()"},
    {ArtifactState::kArrived, ArtifactState::kDiscarding, "discard()"},
    {ArtifactState::kCopying, ArtifactState::kEnded, "copied and acknowledged"},
    {ArtifactState::kCopying, ArtifactState::kDiscarding, "it could not be copied"},
    {ArtifactState::kBorrowed, ArtifactState::kEnded, "released and acknowledged"},
    {ArtifactState::kDiscarding, ArtifactState::kEnded, "every publishing rank ended the number"},
}};
static_assert(isWellFormed(kArtifactTransitions));

std::string_view toString(SlotState state);
std::string_view toString(ArtifactState state);

}  // namespace latentd::channel
