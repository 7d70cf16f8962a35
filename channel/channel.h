#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "channel/handoff_observer.h"
#include "channel/tensor_view.h"
#include "channel/token_grid.h"
#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "runtime/base/strong_id.h"

// The data plane of one edge: one producer group to one consumer group on one host, an endpoint for each rank. The
// protocol, its states and what happens when a side dies are in channel/PROTOCOL.md.
//
//   producer rank p                                   consumer rank c
//   openProducer(spec, p, address)  <- listens        openConsumer(spec, c, addresses)  <- connects, binds
//   publish(n, tree) or abort(n, status)   ------->   receive(n) or borrow(n) or discard(n, reason)
//   on_transfer_done(n)                    <-------   (acknowledged)
//   close(); join(deadline)                           close(); join(deadline)      (consumers first)
//
// Every number that was promised ends exactly once on each producer rank (published or aborted) and exactly once on
// each consumer rank (received, borrowed and released, or discarded). Numbers are published in rising order; aborting
// and discarding need no order.
namespace latentd {
class EventLoop;
class FaultPoints;
}  // namespace latentd

namespace latentd::channel {

class Backend;

// What both sides of a channel agree on; the handshake compares it field by field.
struct ChannelSpec {
  uint32_t channel_id = 0;
  std::string edge;  // "text.encode->denoise.denoise": names, messages and metrics
  Epoch producer_epoch;
  Epoch consumer_epoch;
  uint32_t producer_ranks = 1;
  uint32_t consumer_ranks = 1;
  // Negative dimensions count from the end. A leaf that lacks the dimension is treated as TensorView::whole.
  std::optional<int32_t> producer_shard_dim;  // absent: the producer is replicated and rank 0 publishes
  std::optional<int32_t> consumer_shard_dim;  // absent: every consumer rank reads all
  // The same for leaves in token layout (TensorView::tokens), which no shard_dim cuts. Producer ranks hold successive
  // parts of any sizes, in the order of ranks; consumer ranks get the shares of channel/token_grid.h.
  TokenCut producer_tokens = TokenCut::kNone;  // none: the producer is replicated and rank 0 publishes
  TokenCut consumer_tokens = TokenCut::kNone;  // none: every consumer rank reads all
  uint32_t slots = 2;                          // of each pool
  uint32_t profiles_max = 8;                   // pooled (leaf index, shape, dtype, device); more go unpooled
  uint64_t unpooled_bytes_max = 256ull << 20;  // in flight on the unpooled path, of each producer rank
  // Longest wait for a peer that makes no progress; see noteProgress().
  std::chrono::milliseconds progress_timeout{30000};
};

// INVALID_ARGUMENT naming the field, its value and a valid one.
Status validate(const ChannelSpec& spec);
// Ranks that publish: all of a sharded producer, rank 0 of a replicated one.
uint32_t publishingRanks(const ChannelSpec& spec);

// Bounds of a blocking call, beside the channel's own progress time-out, neither of which ends the channel; and who is
// told where its time went.
struct WaitOptions {
  std::optional<Clock::TimePoint> deadline;  // DEADLINE_EXCEEDED past it
  std::stop_token cancel;                    // CANCELLED once requested
  HandoffObserver* observer = nullptr;       // of the call, for its length; null costs nothing
};

// What an endpoint needs from its process. Owner: the caller; all of it outlives the endpoint.
struct ChannelContext {
  std::shared_ptr<Backend> backend;  // of a transport (channel/shm_backend.h, ...); the endpoints of a process share it
  EventLoop* loop = nullptr;         // running on its own thread; callbacks come on that thread
  const Clock* clock = nullptr;
  FaultPoints* faults = nullptr;  // tests only
  std::stop_token cancel;         // ends an openConsumer() that waits for its peers: CANCELLED
  // Running where freeing memory holds up nobody: for a device's the driver waits for the device. Null: `loop`.
  EventLoop* freeing = nullptr;
};

// ---- producer ----------------------------------------------------------------------------------------------

// A published artifact that every consumer rank acknowledged.
struct Transfer {
  SequenceNumber sequence;
  uint64_t bytes = 0;           // staged by this rank; duplicates once
  Clock::Duration handoff{};    // start of publish() to the last acknowledgement
  Clock::Duration slot_wait{};  // of that, blocked for a slot
  Clock::TimePoint acknowledged;
  bool pooled = true;  // false if any leaf took the unpooled path
};

struct ProducerStats {
  uint32_t slots_in_use = 0;  // published and not yet acknowledged by all
  uint32_t pools = 0;
  uint64_t pool_bytes = 0;
  uint64_t unpooled_bytes = 0;  // in flight now
  uint64_t published = 0;       // artifacts
  uint64_t aborted = 0;
  uint64_t transfers_done = 0;
  uint64_t bytes_staged = 0;
  uint64_t unpooled_artifacts = 0;
  uint64_t copied_acks = 0;  // slot acknowledgements, by sign
  uint64_t discarded_acks = 0;
  uint64_t stale_dropped = 0;  // messages of another epoch or of a number that already ended
  uint64_t handshakes_refused = 0;
  Clock::Duration slot_wait{};  // all publications together
};

struct ProducerCallbacks {
  std::function<void(const Transfer&)> on_transfer_done;
  // Every consumer rank is bound.
  std::function<void()> on_bound;
  // Once, with the first error. The endpoint only answers close(), join() and stats() from then on.
  std::function<void(const Status&)> on_failed;
  // Once: both sides let go of everything, whoever began it. close() and join() still follow, and return at once.
  std::function<void()> on_retired;
};

// The sending endpoint of one producer rank.
// Owner: the worker. Thread: publish() from one thread at a time, never the loop's; the rest from any. Callbacks run on
// the loop's thread, outside locks, and may call anything here but publish() and join().
// States: listening -> bound -> retiring -> retired, or failed from any of them (sticky).
// Failure: UNAVAILABLE when a consumer rank dies or retires, DEADLINE_EXCEEDED when one makes no progress for
// progress_timeout while a slot is waited for, INTERNAL when a peer breaks the protocol. All pending calls return it.
class Producer {
 public:
  // Forces what close() and join() would do in order, if they were not called. Not on the loop's thread.
  virtual ~Producer() = default;

  // Copies the tensors into slots and hands the artifact to every consumer rank. Blocks only for back-pressure: while
  // all slots of a profile are unacknowledged, or the unpooled bytes are used up. Works before the consumers are bound.
  // The sources are free for reuse when it returns (CPU) or in stream order (CUDA).
  // On error nothing was published and the number is still open: end it with abort(). RESOURCE_EXHAUSTED: a pool could
  // not be allocated, or the artifact alone exceeds unpooled_bytes_max (the channel stays usable); INVALID_ARGUMENT: a
  // tree beyond channel/limits.h, or numbers out of order; ALREADY_EXISTS: the number already ended.
  // A rank of a replicated producer that does not publish returns OK at once.
  virtual Status publish(SequenceNumber sequence, const ArtifactTree& tree, const WaitOptions& wait = {}) = 0;

  // Ends a number without data: receive() of every consumer rank returns `reason`, which must not be OK. Never blocks;
  // may overtake publish() of other numbers. ALREADY_EXISTS if the number ended, or is in publish() right now.
  virtual Status abort(SequenceNumber sequence, const Status& reason) = 0;

  // A publication is about to follow, in a few milliseconds: consumers that sleep until it comes wake up meanwhile, and
  // get ready for one like the last. A hint, which may be repeated: nothing depends on it, and it costs nothing where
  // copies are not asynchronous. Thread: publish()'s.
  virtual void announce() = 0;

  // This rank is alive and moving: a finished step, or a heartbeat while the running command is inside its own stall
  // limit. A consumer's wait counts only time since the last one. Costs one shared-memory store.
  virtual void noteProgress() = 0;

  virtual bool bound() const = 0;
  virtual ProducerStats stats() const = 0;

  // Stops publishing and starts the Retire exchange; pending calls return CANCELLED. Idempotent, returns at once.
  virtual void close() = 0;
  // Waits for what close() started: OK once both sides let go of everything the other exported, or the peer is dead;
  // DEADLINE_EXCEEDED if the peer still holds something: recycle the process that does not answer. Idempotent.
  virtual Status join(Clock::TimePoint deadline) = 0;
};

// Listens on `address` (a Unix socket path below 100 bytes; the fake takes any name) and binds consumers as they come.
StatusOr<std::unique_ptr<Producer>> openProducer(const ChannelSpec& spec, Rank rank, const std::string& address,
                                                 const ChannelContext& context, ProducerCallbacks callbacks = {});

// ---- consumer ----------------------------------------------------------------------------------------------

// Where receive() puts tensors. Thread: the caller of receive(). It may be called while nothing has arrived yet, for
// what is expected: if something else comes, such a tensor goes unused, or is let go of while a device still writes it.
// So its memory may be used again in the order of the stream in which the channel copies.
class Allocator {
 public:
  virtual ~Allocator() = default;
  // A tensor of this shape whose storage `owner` keeps, not cleared; strides may be any. RESOURCE_EXHAUSTED if there is
  // no memory. What it throws passes through the call that needs it, whose number is discarded.
  virtual StatusOr<TensorView> allocate(DType dtype, const std::vector<int64_t>& shape, Device device) = 0;
};

struct ConsumerStats {
  uint64_t received = 0;  // artifacts
  uint64_t borrowed = 0;
  uint64_t aborted = 0;     // ended by the producer
  uint64_t bytes_read = 0;  // copied or lent; equals this rank's overlap with what was published
  uint64_t announced = 0;   // times that a publication was said to be coming
  uint64_t read_ahead = 0;  // times that what was filled was read before its record came
  uint64_t reread = 0;      // artifacts that were read ahead and turned out to be something else
  uint64_t stale_dropped = 0;
  uint32_t pools_mapped = 0;
  uint32_t pending = 0;                       // arrived from at least one producer rank and not ended here
  std::map<std::string, uint64_t> discarded;  // artifacts, by reason
};

struct ConsumerCallbacks {
  std::function<void(const Status&)> on_failed;  // as for the producer
  std::function<void()> on_retired;
};

// An artifact whose slots are acknowledged when it is released: a borrowed one, which is read in its slots, or a taken
// one, which was copied out of them. Until then the producer cannot reuse them, so hold it for no longer than the read,
// or than what is more urgent. Owner: the caller; move only; may outlive the consumer. Thread: one at a time.
// Failure: the memory stays readable after the channel failed (its content is then that of the number).
class HeldArtifact {
 public:
  class Hold {
   public:
    virtual ~Hold() = default;  // acknowledges
  };
  HeldArtifact(ArtifactTree tree, std::unique_ptr<Hold> hold) : tree_(std::move(tree)), hold_(std::move(hold)) {}

  // Borrowed: views into the slots, read only (a write faults), which must not be used once it is released. Taken:
  // tensors of their own.
  const ArtifactTree& tree() const { return tree_; }
  // Acknowledges. Idempotent.
  void release() {
    tree_ = ArtifactTree();
    hold_.reset();
  }

 private:
  ArtifactTree tree_;
  std::unique_ptr<Hold> hold_;  // after tree_: destroyed first, which is when the slots are given back
};

// The receiving endpoint of one consumer rank.
// Owner: the worker. Thread: any; receive(), take() and borrow() from one thread at a time, never the loop's. Callbacks
// run on the loop's thread, outside locks.
// States: bound -> retiring -> retired, or failed from any of them (sticky).
// Failure: as for Producer. An error that belongs to one artifact ends that artifact only.
class Consumer {
 public:
  virtual ~Consumer() = default;

  // Waits for number n of every publishing rank, copies this rank's part into tensors of `allocator` on the consumer's
  // device and acknowledges. Structure, scalars and shared leaves are as published.
  // The status given to abort(), if the producer aborted the number: it has ended here too. CANCELLED or
  // DEADLINE_EXCEEDED of `wait`: the number is still open, discard it. RESOURCE_EXHAUSTED from the allocator or from
  // mapping a pool, INTERNAL when producer ranks published trees that do not fit together: the number was discarded.
  // ALREADY_EXISTS: it ended before. Numbers are received in rising order; a later number can wait for ever on slots
  // that an earlier, unreceived one holds.
  virtual StatusOr<ArtifactTree> receive(SequenceNumber sequence, Allocator& allocator,
                                         const WaitOptions& wait = {}) = 0;

  // As receive(), but the acknowledgement is the caller's to give, by releasing what it gets: first comes what is more
  // urgent, such as a device that waits for work on the tensors.
  virtual StatusOr<HeldArtifact> take(SequenceNumber sequence, Allocator& allocator, const WaitOptions& wait = {}) = 0;

  // As receive(), without the copy. FAILED_PRECONDITION if a leaf would have to be put together from several ranks'
  // slots: the number is still open, receive() it.
  virtual StatusOr<HeldArtifact> borrow(SequenceNumber sequence, const WaitOptions& wait = {}) = 0;

  // Releases a number that will not be received, now or when it arrives. `reason` is a metric label (at most 16
  // different ones are counted apart, later ones as "other"). `done` runs once, on the loop's thread: OK when every
  // publishing rank ended the number and its slots were given back, else the channel's failure. Returns ALREADY_EXISTS,
  // and does not call `done`, if the number ended or is being received.
  virtual Status discard(SequenceNumber sequence, std::string_view reason,
                         std::function<void(const Status&)> done = nullptr) = 0;
  // The same, waiting for it. Not on the loop's thread.
  virtual Status discardAndWait(SequenceNumber sequence, std::string_view reason, const WaitOptions& wait = {}) = 0;

  // As Producer::noteProgress(), for producers that wait for a slot.
  virtual void noteProgress() = 0;

  virtual ConsumerStats stats() const = 0;

  // Pending calls return CANCELLED, what arrived is discarded, then pools are unmapped. As Producer::close() and
  // join(); join() also waits for held artifacts to be released.
  virtual void close() = 0;
  virtual Status join(Clock::TimePoint deadline) = 0;
};

// Connects to every publishing rank (`addresses` has one entry for each producer rank) and returns once all of them
// accepted the handshake: within spec.progress_timeout, else DEADLINE_EXCEEDED; UNAVAILABLE if nobody listens
// or the producer ended; FAILED_PRECONDITION naming the field that a rank refused. `device` is where received tensors
// go. Not on the loop's thread.
StatusOr<std::unique_ptr<Consumer>> openConsumer(const ChannelSpec& spec, Rank rank,
                                                 const std::vector<std::string>& addresses, Device device,
                                                 const ChannelContext& context, ConsumerCallbacks callbacks = {});

}  // namespace latentd::channel
