#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "runtime/base/strong_id.h"
#include "runtime/supervisor/worker_id.h"

namespace latentd::supervisor {

// The artifacts promised on one edge: hands out numbers in order and counts credits. A credit is taken by a promise
// and comes back when every consumer rank has settled it, that is, copied or discarded it.
// Owner: Dispatcher. Thread: the supervisor's loop.
// States: closed <-> open; each opening is a new channel whose numbers start at 0.
class EdgeLedger {
 public:
  explicit EdgeLedger(uint32_t credits);

  void open(ChannelId channel, uint32_t consumer_ranks);
  // Forgets all promises: their credits come back, what settles them later is stale.
  void close();
  bool isOpen() const { return channel_.value != 0; }
  ChannelId channel() const { return channel_; }

  bool hasCredit() const { return isOpen() && promises_.size() < credits_; }
  // Takes a credit; there is one.
  SequenceNumber promise(const JobId& job);
  // The rank holds the artifact no more. Unknown and repeated ones change nothing.
  void settle(SequenceNumber sequence, Rank rank);
  bool isOutstanding(ChannelId channel, SequenceNumber sequence) const;
  // Whose artifact it is or, for the last few, was.
  std::optional<JobId> jobOf(SequenceNumber sequence) const;

 private:
  struct Promise {
    SequenceNumber sequence;
    std::vector<bool> settled;  // by consumer rank
    uint32_t ranks_left;
  };
  struct Owner {
    SequenceNumber sequence;
    JobId job;
  };

  const uint32_t credits_;
  ChannelId channel_;
  uint32_t consumer_ranks_ = 0;
  SequenceNumber next_;
  std::deque<Promise> promises_;  // at most credits_
  std::deque<Owner> owners_;      // at most credits_ + kTransfersRemembered
};

}  // namespace latentd::supervisor
