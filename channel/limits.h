#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

// Every bound of the data plane. What a peer sends is checked against them before it is used.
namespace latentd::channel {

// Raised at every change of proto/channel.proto, of the control block or of handles that an older peer would misread.
inline constexpr uint32_t kProtocolVersion = 6;

// Ranks of one host: eight GPUs shared by eight processes each.
inline constexpr uint32_t kRanksMax = 64;
inline constexpr uint32_t kSlotsMax = 16;
// More stable shapes than any stage has; each may hold kSlotsMax buffers.
inline constexpr uint32_t kProfilesMax = 64;
// Artifacts in flight that hold no pooled slot (scalars only, or one-shot buffers).
inline constexpr uint32_t kTickets = 16;

// One artifact. Its publication must fit one frame: about 100 bytes a leaf, 150 in token layout, and 30 a node, plus
// keys and strings.
inline constexpr uint32_t kLeavesMax = 256;
inline constexpr uint32_t kTreeNodesMax = 2048;
inline constexpr uint32_t kTreeDepthMax = 32;
inline constexpr uint32_t kDimensionsMax = 8;
// One tensor; keeps every product of extents, strides and counts far from 2^63.
inline constexpr uint64_t kTensorBytesMax = 1ull << 40;

// A datagram this long passes the default socket buffer (208 KiB, of which the kernel keeps a part for itself).
inline constexpr size_t kFrameBytesMax = 128 << 10;
// Text of a status on the wire; longer ones are cut.
inline constexpr size_t kStatusTextMax = 2048;

// Numbers that arrived, or that were discarded beforehand, and did not end yet on a consumer rank. The supervisor
// promises a few at a time; a peer that goes beyond this is broken.
inline constexpr size_t kPendingArtifactsMax = 1024;
// Numbers that ended ahead of an open lower one.
inline constexpr size_t kEndedAheadMax = 4096;
// Frames that wait for a peer's socket. Sum of: announcements (kProfilesMax), publications in flight
// (kProfilesMax * kSlotsMax + kTickets), aborts (kPendingArtifactsMax), each with its Comings, and doorbells
// (kPendingArtifactsMax): 11,408.
inline constexpr size_t kOutboxFramesMax = 16384;
// Of one publication, or of what is aborted instead.
inline constexpr uint32_t kComingsMax = 4;
static_assert(kProfilesMax + (1 + kComingsMax) * (kProfilesMax * kSlotsMax + kTickets + kPendingArtifactsMax) +
                  kPendingArtifactsMax <=
              kOutboxFramesMax);

// For this long after Coming a waiting consumer looks without sleeping: a wake-up takes 50 to 100 us, and its first
// round through code that it has not run for long as much again, so both are to happen while the producer's device is
// still at work. Once or twice for each artifact; longer would be a burden where cores are few.
inline constexpr std::chrono::microseconds kComingLook{4000};
// So it does for this long when it begins to wait: commands come early, and often as late as the artifact.
inline constexpr std::chrono::microseconds kFirstLook{1000};
// A Coming that is older than this is said again: its look would be over before the record is there.
inline constexpr std::chrono::microseconds kComingFresh{3000};

// A device that still works for an endpoint that ends is looked at again after this: about a small copy.
inline constexpr std::chrono::milliseconds kDrainLook{1};

// A waiting call looks this often whether its peers move: often enough that a time-out is late by little.
inline constexpr std::chrono::milliseconds kLookMax{100};

// Connections that have not finished their handshake, beyond one for each consumer rank.
inline constexpr uint32_t kStrayConnectionsMax = 8;

// Discard reasons that are counted apart; they become metric labels.
inline constexpr size_t kDiscardReasonsMax = 16;
inline constexpr size_t kEdgeNameBytesMax = 256;

// Slots start at multiples of this: a page, so that no two share one, and more than any vector load wants.
inline constexpr uint64_t kSlotAlignment = 4096;
// Leaves inside a one-shot buffer: a cache line, and what device copies like.
inline constexpr uint64_t kLeafAlignment = 256;
// Pools come in multiples of a large page.
inline constexpr uint64_t kPoolGranularity = 2ull << 20;

constexpr uint64_t roundUp(uint64_t value, uint64_t granularity) {
  return (value + granularity - 1) / granularity * granularity;
}

}  // namespace latentd::channel
