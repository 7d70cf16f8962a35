#include "runtime/supervisor/edge_ledger.h"

#include <algorithm>

#include "runtime/base/check.h"
#include "runtime/supervisor/limits.h"

namespace latentd::supervisor {

EdgeLedger::EdgeLedger(uint32_t credits) : credits_(credits) {
  LATENTD_CHECK(credits > 0, "an edge without slots would never move");
}

void EdgeLedger::open(ChannelId channel, uint32_t consumer_ranks) {
  LATENTD_CHECK(!isOpen() && channel.value != 0 && consumer_ranks > 0, "an edge opens once an epoch, with consumers");
  channel_ = channel;
  consumer_ranks_ = consumer_ranks;
  next_ = SequenceNumber();
}

void EdgeLedger::close() {
  channel_ = ChannelId();
  promises_.clear();
  owners_.clear();
}

SequenceNumber EdgeLedger::promise(const JobId& job) {
  LATENTD_CHECK(hasCredit(), "a promise takes a credit");
  const SequenceNumber sequence = next_;
  next_ = SequenceNumber(next_.value + 1);
  promises_.push_back({sequence, std::vector<bool>(consumer_ranks_, false), consumer_ranks_});
  owners_.push_back({sequence, job});
  if (owners_.size() > credits_ + kTransfersRemembered) owners_.pop_front();
  return sequence;
}

void EdgeLedger::settle(SequenceNumber sequence, Rank rank) {
  const auto found = std::find_if(promises_.begin(), promises_.end(),
                                  [&](const Promise& promise) { return promise.sequence == sequence; });
  if (found == promises_.end() || rank.value >= consumer_ranks_ || found->settled[rank.value]) return;
  found->settled[rank.value] = true;
  if (--found->ranks_left == 0) promises_.erase(found);
}

bool EdgeLedger::isOutstanding(ChannelId channel, SequenceNumber sequence) const {
  return channel == channel_ && std::any_of(promises_.begin(), promises_.end(),
                                            [&](const Promise& promise) { return promise.sequence == sequence; });
}

std::optional<JobId> EdgeLedger::jobOf(SequenceNumber sequence) const {
  const auto found =
      std::find_if(owners_.rbegin(), owners_.rend(), [&](const Owner& owner) { return owner.sequence == sequence; });
  if (found == owners_.rend()) return std::nullopt;
  return found->job;
}

}  // namespace latentd::supervisor
