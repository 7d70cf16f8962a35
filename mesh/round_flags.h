#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <vector>

#include "runtime/base/shm_region.h"
#include "runtime/base/status.h"
#include "runtime/base/strong_id.h"
#include "runtime/base/unique_fd.h"

namespace latentd::mesh {

// How ranks that write into each other's memory take turns: a page of flags in each rank's own memory, which its peers
// map and write. Nobody polls: who waits sleeps on its own page.
//
//   announce(kFree, n)      I read nothing of the rounds before n any more
//   await(kFree, n)         so I may write what I give in round n into the peers' memory
//   announce(kWritten, n)   all that I give in round n is there
//   await(kWritten, n)      so I may read what I was given in round n
//
// Rounds count from 1; they may pass 2^32. A flag is stored with release and loaded with acquire, which orders what the
// ranks do with the memory in between [M10]. Devices raise and await the same flags in their streams' turns:
// offsetOf() tells where they are.
// Owner: a ScatterMemory. Thread: one; end(), trouble(), reached() and pass() from any. States: open -> ended. Failure:
// await() throws std::runtime_error where this rank has ended, and naming a peer that has ended, that died, or that
// left before it announced what is awaited. It has no deadline of its own: whoever has one ends it.
class RoundFlags {
 public:
  enum class Mark { kFree, kWritten };

  static uint64_t pageBytes(size_t ranks);
  // Of this process, once, before the peers map it.
  static void initialize(const ShmRegion& page);
  // `pages`: by rank, that of `rank` its own. `members`: what the ranks are called. UNAVAILABLE: a peer is gone.
  static StatusOr<RoundFlags> make(size_t rank, std::vector<Rank> members, std::vector<ShmRegion> pages);
  RoundFlags(RoundFlags&&) = default;

  void announce(Mark mark, uint32_t round);
  void await(Mark mark, uint32_t round);
  // What somebody waits in vain for; OK while there is hope.
  Status trouble(Mark mark, uint32_t round) const;

  // For devices: the bytes of a rank's page, and where in them a flag is that `from` raises for the owner, or the word
  // for reached().
  const ShmRegion& pageOf(size_t rank) const { return pages_[rank]; }
  static size_t offsetOf(size_t from, Mark mark);
  static size_t reachedOffset();
  // The last round that this rank's device says it is through with.
  uint32_t reached() const;
  // Raises what the peers do not, so that a device that waits for a round up to this one goes on.
  void pass(uint32_t round) noexcept;

  // Whoever waits, here or on a peer, is told.
  void end() noexcept;
  // This rank goes, has announced all that it will, and has let go of what the peers share with it.
  void leave() noexcept;
  // Until all peers have left, ended or died, or the deadline.
  void awaitLeaving(std::chrono::steady_clock::time_point deadline);

 private:
  struct Page;
  struct Flags;
  enum class Presence : uint32_t { kHere, kLeft, kEnded };
  RoundFlags(size_t rank, std::vector<Rank> members, std::vector<ShmRegion> pages, std::vector<UniqueFd> processes)
      : rank_(rank), members_(std::move(members)), pages_(std::move(pages)), processes_(std::move(processes)) {}

  Page& page(size_t rank) const;
  void tellPeers(Presence presence) noexcept;
  // What a peer said to this rank.
  const Flags& from(size_t peer) const;
  bool behind(size_t peer, Mark mark, uint32_t round) const;
  bool anyBehind(Mark mark, uint32_t round) const;
  bool anyHere() const;

  size_t rank_;
  std::vector<Rank> members_;
  std::vector<ShmRegion> pages_;
  std::vector<UniqueFd> processes_;  // by rank; none of its own
};

}  // namespace latentd::mesh
