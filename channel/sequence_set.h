#pragma once

#include <cstddef>
#include <set>

#include "channel/limits.h"
#include "runtime/base/check.h"
#include "runtime/base/strong_id.h"

namespace latentd::channel {

// Numbers that ended: all below a watermark, and few above it. A value type.
class SequenceSet {
 public:
  bool contains(SequenceNumber number) const { return number < next_ || ahead_.count(number) > 0; }

  // The lowest number that has not ended.
  SequenceNumber next() const { return next_; }

  // False if the number would make more than kEndedAheadMax end ahead of an open one.
  bool canInsert(SequenceNumber number) const { return number == next_ || ahead_.size() < kEndedAheadMax; }

  void insert(SequenceNumber number) {
    LATENTD_CHECK(!contains(number) && canInsert(number), "a number ends once [C5]");
    ahead_.insert(number);
    while (!ahead_.empty() && *ahead_.begin() == next_) {
      ahead_.erase(ahead_.begin());
      ++next_.value;
    }
  }

 private:
  SequenceNumber next_{0};
  std::set<SequenceNumber> ahead_;  // all above next_
};

}  // namespace latentd::channel
