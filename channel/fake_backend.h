#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "channel/backend.h"

namespace latentd::channel {

// A transport inside one process: heap memory and queues, with faults and delays that a test injects. Deterministic:
// nothing happens by time. Producers and consumers that are to meet share one object.
// Owner: the test, shared with endpoints. Thread: any. States: none. Failure: what was injected.
class FakeBackend : public Backend {
 public:
  static std::shared_ptr<FakeBackend> make();

  // Who sends.
  enum class Side { kConsumer, kProducer };

  // Delay: messages of that side stay under way until released, in order.
  virtual void hold(Side from) = 0;
  virtual void release(Side from) = 0;
  // A peer that does not read: sends of that side would block until unblocked.
  virtual void block(Side from, bool blocked) = 0;
  // Corruption: every message of that side passes through `change`, which may alter or (returning false) drop it. Null
  // ends it.
  virtual void tamper(Side from, std::function<bool(std::string& bytes)> change) = 0;
  // A message that nobody's protocol sent.
  virtual void inject(Side from, const std::string& bytes) = 0;
  // Death: every connection ends, as when the process of that side is killed. What it had sent still arrives.
  virtual void kill(Side who) = 0;
  // Want of memory: the next `count` pools cannot be created.
  virtual void failPools(uint32_t count) = 0;
  // The next `count` pools cannot be imported: for want of memory (RESOURCE_EXHAUSTED), or because their exporter has
  // died and its connection has not ended yet (UNAVAILABLE).
  virtual void failImports(uint32_t count, absl::StatusCode code) = 0;
  // Bytes of pools, buffers and control blocks that exist.
  virtual uint64_t bytesAllocated() const = 0;
};

}  // namespace latentd::channel
