#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/dtype.h"
#include "runtime/base/shm_region.h"
#include "runtime/base/status.h"
#include "runtime/base/strong_id.h"

namespace latentd {

// What one rank did with one process group, for the reader of a dump.
struct Operation {
  static constexpr size_t kNameBytes = 24;
  static constexpr size_t kDimsMax = 6;

  std::string kind;       // "all_to_all", "all_reduce", "send", ...; at most kNameBytes - 1 bytes are kept
  std::string group;      // "ulysses", "world", ...; likewise
  uint64_t members = 0;   // of that group: bit r for rank r
  uint64_t sequence = 0;  // of the operations on that group, from 1
  uint64_t run = 0;       // of the commands of the ranks, from 1; 0: before the first
  DType dtype = DType::kFloat32;
  std::vector<int64_t> shape;  // of what this rank gives, the first kDimsMax of it
  uint64_t bytes_sent = 0;     // to other ranks
  int64_t submitted_ns = 0;    // CLOCK_MONOTONIC
  int64_t done_ns = 0;         // 0: under way
};
// Of what the rank gives: "float32 [2, 320]".
std::string tensorText(const Operation& operation);
// What ranks have to agree on: "all_reduce of float32 [2, 320] in run 3".
std::string operationText(const Operation& operation);
// INTERNAL: two ranks do not do the same for this operation of its group. What each does: "all_reduce of float32 [2]".
Status operationDiffers(const Operation& operation, Rank one, const std::string& does, Rank other,
                        const std::string& other_does);

// The last operations of every rank of a group, in memory that its ranks and their supervisor share: what a rank that
// hangs or died was doing can be read by the others. A ring of kOperations a rank; the oldest are overwritten.
//
//   rank         begin(operation) -> number ... end(number)
//   anybody      operations(rank)
//
// Also how ranks notice that they do not do the same: disagreement() compares what the peers said of the same
// operation. Owner: the supervisor makes the region; each side maps it. Thread: begin() and end() of a rank from one
// thread at a time; the rest from any, in any process (an entry that is being written is left out). Failure: what a
// peer wrote is checked before it is used.
class FlightRecorder {
 public:
  static constexpr size_t kOperations = 64;
  static constexpr uint32_t kRanksMax = 64;

  // Since the recorder was made.
  struct Totals {
    uint64_t operations = 0;  // begun
    uint64_t bytes_sent = 0;
  };

  // INVALID_ARGUMENT unless ranks is 1 to kRanksMax.
  static StatusOr<ShmRegion> createRegion(uint32_t ranks);
  // Whoever only reads may name any rank. INVALID_ARGUMENT for foreign memory and a rank that it has no ring for.
  static StatusOr<FlightRecorder> attach(ShmRegion region, Rank rank);

  uint32_t ranks() const { return ranks_; }
  // For the other ranks.
  int fd() const { return region_.fd(); }

  // The number to end it by.
  uint64_t begin(const Operation& operation);
  // No effect once kOperations later ones were begun.
  void end(uint64_t number);

  // INTERNAL naming both ranks and what each does, if one of `peers` began the operation of the same group and sequence
  // in another run, with another kind or dtype, or, where `same_shape`, another shape. A peer that is not there yet
  // says nothing: it compares when it comes, and of two that come at once at least one sees the other. A few loads a
  // peer.
  Status disagreement(const Operation& mine, const std::vector<Rank>& peers, bool same_shape) const;

  // Oldest first.
  std::vector<Operation> operations(Rank rank) const;
  Totals totals(Rank rank) const;

 private:
  struct Memory;
  struct Ring;
  FlightRecorder(ShmRegion region, Rank rank, uint32_t ranks);
  Ring& ring(Rank rank) const;

  ShmRegion region_;
  Rank rank_;
  uint32_t ranks_;  // a copy: the memory is everybody's
};

}  // namespace latentd
