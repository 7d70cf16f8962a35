#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "channel/tensor_desc.h"
#include "channel/transfer_plan.h"
#include "runtime/base/status.h"
#include "runtime/base/strong_id.h"
#include "runtime/base/unix_socket.h"

// What a transport supplies. The protocol (channel/producer, channel/consumer) is written once against it: a backend
// moves bytes and messages and knows nothing of slots' states, acknowledgements or numbers.
namespace latentd::channel {

// What lets the other process reach an exported object: opaque bytes and descriptors. A value type.
struct Handle {
  std::string bytes;
  std::vector<int> fds;              // borrowed from `keep`
  std::shared_ptr<const void> keep;  // owners: the exporter and frames that were not sent yet
};

// A message on its way out.
struct OutFrame {
  std::string bytes;
  std::vector<int> fds;
  std::shared_ptr<const void> keep;
};

// One ordered, reliable connection between a producer rank and a consumer rank.
// Owner: the endpoint. Thread: one at a time (the endpoint's lock), pollFd() from any.
// States: open -> closed, by either side. Failure: UNAVAILABLE once the peer is gone.
class Link {
 public:
  enum class Sent { kYes, kWouldBlock };
  enum class Received { kFrame, kNothing, kClosed };

  virtual ~Link() = default;
  virtual StatusOr<Sent> send(const OutFrame& frame) = 0;
  // Never blocks. Everything that was sent before a close is received before kClosed.
  virtual StatusOr<Received> receive(Frame& frame) = 0;
  // Readable while receive() has something; writable once send() would not block.
  virtual int pollFd() const = 0;
};

// Where consumers connect. Owner: the producer. Thread: the loop's.
class Listener {
 public:
  virtual ~Listener() = default;
  // Null when nobody waits. PERMISSION_DENIED if a process of another user connected (and was dropped).
  virtual StatusOr<std::unique_ptr<Link>> accept() = 0;
  virtual int pollFd() const = 0;
};

// Memory that a producer rank shares with its consumers for the control block. Owner: an endpoint.
class ControlMemory {
 public:
  virtual ~ControlMemory() = default;
  virtual std::span<std::byte> memory() = 0;
  virtual Handle handle() const = 0;  // exporter only
};

// Slots of one profile, or one one-shot buffer (one slot), on the producer's device.
// Owner: the producer. Thread: fill() the publisher's; the rest under the producer's lock.
// Failure: a Status; fill() that failed has written nothing a consumer may see.
class ExportedPool {
 public:
  virtual ~ExportedPool() = default;
  virtual Handle handle() const = 0;
  // A consumer rank's completion events, from its ImportedPool::attachment().
  virtual Status attach(Rank consumer, const std::string& attachment) = 0;
  // Orders the slot after the completion events of the ranks in `copied_by` (a bit each), copies the source to
  // `offset` bytes into the slot as a dense tensor, and records that the slot is ready. Asynchronous on a device: it
  // is submitted when this returns.
  virtual Status fill(SlotIndex slot, uint64_t offset, const TensorView& source, uint64_t copied_by) = 0;
  // fill() is about to be called by a thread that has done other things: what the driver does for it, without a slot.
  virtual void rehearse() {}
  // Lets go of that consumer rank's events, once no submitted fill waits for them; no fill() follows. Never blocks:
  // false while the device still works, so ask again.
  virtual StatusOr<bool> tryDropAttachment(Rank consumer) = 0;
};

// The same memory as a consumer rank sees it. Owner: the consumer, and borrowed artifacts. Thread: read(), complete()
// the receiver's; the rest under the consumer's lock.
class ImportedPool {
 public:
  virtual ~ImportedPool() = default;
  // For ExportedPool::attach().
  virtual std::string attachment() const = 0;
  // Orders the copy after the slot is ready, then copies the regions of the dense tensor at `offset` into `target`.
  virtual Status read(SlotIndex slot, uint64_t offset, std::span<const CopyRegion> regions,
                      const TensorView& target) = 0;
  // This rank's device reads slots where they are: borrow() may be called.
  virtual bool lends() const = 0;
  // The first element of the dense tensor at `offset`, ordered after the slot is ready.
  virtual StatusOr<void*> borrow(SlotIndex slot, uint64_t offset) = 0;
  // read() is about to be called by a thread that has slept: what the driver does for it. Touches no slot, and is no
  // turn for this process on a device where the producer's is due.
  virtual void rehearse() {}
  // Records the completion of everything read from the slot: before +generation; before -generation only if it was read
  // ahead in vain. Where the exporter has no event of ours to wait for (a one-shot buffer, a CPU producer), waits for
  // it, within a deadline.
  virtual Status complete(SlotIndex slot) = 0;
  // Unmaps, once no submitted read uses the memory: no read() or borrow() follows. This side's events stay. Never
  // blocks: false while the device still works, so ask again.
  virtual StatusOr<bool> tryUnmap() = 0;
};

// Sizes of a pool.
struct PoolLayout {
  Device device;
  uint32_t slots = 1;
  uint64_t slot_stride = 0;  // bytes, a multiple of kSlotAlignment
  uint64_t bytes = 0;        // the whole pool
  uint32_t consumers = 1;    // ranks that import it
  bool one_shot = false;     // the buffer of one artifact: freed at its acknowledgement
};

// A transport. Owners: the endpoints of this process (shared: they end in any order). Thread: any.
class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string_view transport() const = 0;
  // Copies are submitted, not made, when fill() and read() return: a publication follows its first fill at once, and to
  // read a slot before its record is there costs no host the time of a copy.
  virtual bool asynchronous() const = 0;

  virtual StatusOr<std::unique_ptr<Listener>> listen(const std::string& address, uint32_t connections) = 0;
  // UNAVAILABLE if nobody listens.
  virtual StatusOr<std::unique_ptr<Link>> connect(const std::string& address) = 0;

  // Zeroed. RESOURCE_EXHAUSTED if there is no memory.
  virtual StatusOr<std::unique_ptr<ControlMemory>> createControl(const std::string& name, uint64_t bytes) = 0;
  virtual StatusOr<std::unique_ptr<ControlMemory>> importControl(const std::string& handle, std::vector<UniqueFd> fds,
                                                                 uint64_t bytes) = 0;

  // RESOURCE_EXHAUSTED if there is no memory, INVALID_ARGUMENT for a device that the transport does not serve.
  virtual StatusOr<std::unique_ptr<ExportedPool>> createPool(const std::string& name, const PoolLayout& layout) = 0;
  // Validates what the peer sent. RESOURCE_EXHAUSTED if it cannot be mapped.
  virtual StatusOr<std::shared_ptr<ImportedPool>> importPool(const std::string& handle, std::vector<UniqueFd> fds,
                                                             const PoolLayout& layout) = 0;
};

}  // namespace latentd::channel
