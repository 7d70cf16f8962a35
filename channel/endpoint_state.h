#pragma once

#include "runtime/base/state_machine.h"

// How endpoints and their connections end: the Retire exchange of PROTOCOL.md, as tables.
namespace latentd::channel {

enum class EndpointState {
  kOpen,      // the protocol runs
  kRetiring,  // closed or failed; something is still held by a peer or a caller
  kRetired,   // both sides let go of everything
};

inline constexpr TransitionTable<EndpointState, 2> kEndpointTransitions{{
    {EndpointState::kOpen, EndpointState::kRetiring, "close(), a failure, or the peer retires"},
    {EndpointState::kRetiring, EndpointState::kRetired, "every peer is gone"},
}};
static_assert(isWellFormed(kEndpointTransitions));

// A consumer rank, as a producer rank sees it.
enum class PeerState {
  kAbsent,    // not connected yet
  kBound,     // handshake done
  kRetiring,  // Retire was sent
  kUnmapped,  // the consumer holds nothing of ours any more
  kDropped,   // we hold nothing of the consumer's any more; RetireDropped was sent
  kGone,      // it is done, or dead
};

inline constexpr TransitionTable<PeerState, 10> kPeerTransitions{{
    {PeerState::kAbsent, PeerState::kBound, "Bound"},
    {PeerState::kAbsent, PeerState::kGone, "this endpoint ends"},
    {PeerState::kBound, PeerState::kRetiring, "this endpoint ends"},
    {PeerState::kBound, PeerState::kUnmapped, "RetireUnmapped: the consumer ends first"},
    {PeerState::kBound, PeerState::kGone, "the connection ended"},
    {PeerState::kRetiring, PeerState::kUnmapped, "RetireUnmapped"},
    {PeerState::kRetiring, PeerState::kGone, "the connection ended"},
    {PeerState::kUnmapped, PeerState::kDropped, "no publication is under way"},
    {PeerState::kUnmapped, PeerState::kGone, "the connection ended"},
    {PeerState::kDropped, PeerState::kGone, "RetireDone, or the connection ended"},
}};
static_assert(isWellFormed(kPeerTransitions));

// A producer rank, as a consumer rank sees it.
enum class SourceState {
  kBound,     // handshake done
  kUnmapped,  // its pools are unmapped here; RetireUnmapped was sent
  kGone,      // it let go of our events too, or is dead
};

inline constexpr TransitionTable<SourceState, 3> kSourceTransitions{{
    {SourceState::kBound, SourceState::kUnmapped, "this endpoint ends and nobody reads"},
    {SourceState::kBound, SourceState::kGone, "the connection ended"},
    {SourceState::kUnmapped, SourceState::kGone, "RetireDropped, or the connection ended"},
}};
static_assert(isWellFormed(kSourceTransitions));

}  // namespace latentd::channel
