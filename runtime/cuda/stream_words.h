#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/cuda/stream.h"

namespace latentd::cuda {

// A word of memory that a stream writes, or waits for, in its turn: CUDA's stream memory operations, by which devices
// tell each other without a host. The word is on a device, or pinned on the host (PinnedRange::onDevice()).
struct WordOperation {
  enum class Kind {
    kWrite,        // after all that the stream did before, as everybody sees it
    kWaitAtLeast,  // until word - value, as a signed number, is not negative: counters may pass 2^32
  };
  Kind kind;
  void* word;  // as the device addresses it
  uint32_t value;
};

// The driver's entry to them. Thread: any. States: none. Failure: load() returns FAILED_PRECONDITION where there is
// none.
class StreamWords {
 public:
  static StatusOr<StreamWords> load();
  // One after the other, in one submission. A wait that nobody satisfies holds the stream for ever: whoever submits it
  // sees to it that somebody will.
  Status submit(StreamView stream, std::span<const WordOperation> operations) const;

 private:
  explicit StreamWords(void* batch) : batch_(batch) {}

  void* batch_;  // cuStreamBatchMemOp
};

}  // namespace latentd::cuda
