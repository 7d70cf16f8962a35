#pragma once

#include <cstdint>

#include "runtime/base/clock.h"
#include "runtime/base/strong_id.h"

namespace latentd::channel {

// What a call spent its time on. Copies to or from a device end when they were submitted.
enum class HandoffPhase {
  kSlotWait,     // publish(): every slot was unacknowledged
  kStaging,      // publish(): one tensor into its slot
  kPublish,      // publish() as a whole
  kInputWait,    // receive(), take(), borrow(): until the artifact was there
  kCopy,         // receive(), take(): out of the slots; while the artifact was waited for, if it was read ahead
  kAcknowledge,  // receive(): giving the slots back
};

struct HandoffSpan {
  HandoffPhase phase;
  SequenceNumber sequence;
  Clock::TimePoint start;  // of the channel's clock
  Clock::TimePoint end;
  uint64_t bytes = 0;
};

// Is told where the time of a call went, if it succeeded. Owner: the caller. Thread: the caller's, inside the call,
// outside locks; it may not call the endpoint.
class HandoffObserver {
 public:
  virtual ~HandoffObserver() = default;
  virtual void onSpan(const HandoffSpan& span) = 0;
};

}  // namespace latentd::channel
