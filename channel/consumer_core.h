#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "channel/backend.h"
#include "channel/channel.h"
#include "channel/control_block.h"
#include "channel/drain_look.h"
#include "channel/endpoint_state.h"
#include "channel/peer_link.h"
#include "channel/progress_watch.h"
#include "channel/record.h"
#include "channel/sequence_set.h"
#include "channel/slot_state.h"
#include "runtime/base/event_loop.h"
#include "runtime/base/mutex.h"

namespace latentd::channel {

// The receiving side of the protocol, whatever the backend.
// Owner: ConsumerEndpoint (consumer.cc) and held artifacts; callbacks in the loop hold it weakly.
// Thread: public calls as channel.h says. Messages are read by the loop's thread, or by a thread that waits in
// receive(): that one polls the sockets itself while the loop's interest is muted, so that no hand-off pays for a
// second wake-up. Whoever reads holds the one lock; it is not held while slots are copied, while sockets are polled,
// nor in callbacks. States: EndpointState, SourceState for each producer rank, ArtifactState for each number. Failure:
// sticky, in failure_.
class ConsumerCore : public std::enable_shared_from_this<ConsumerCore> {
 public:
  ConsumerCore(const ChannelSpec& spec, Rank rank, Device device, const ChannelContext& context,
               ConsumerCallbacks callbacks);

  // The handshake with every publishing rank. Blocks for at most the channel's progress time-out.
  Status connect(const std::vector<std::string>& addresses) EXCLUDES(mutex_);

  StatusOr<ArtifactTree> receive(SequenceNumber sequence, Allocator& allocator, const WaitOptions& wait)
      EXCLUDES(mutex_);
  StatusOr<HeldArtifact> take(SequenceNumber sequence, Allocator& allocator, const WaitOptions& wait) EXCLUDES(mutex_);
  StatusOr<HeldArtifact> borrow(SequenceNumber sequence, const WaitOptions& wait) EXCLUDES(mutex_);
  Status discard(SequenceNumber sequence, std::string_view reason, std::function<void(const Status&)> done)
      EXCLUDES(mutex_);
  Status discardAndWait(SequenceNumber sequence, std::string_view reason, const WaitOptions& wait) EXCLUDES(mutex_);
  void noteProgress();
  ConsumerStats stats() const EXCLUDES(mutex_);
  void close() EXCLUDES(mutex_);
  Status join(Clock::TimePoint deadline) EXCLUDES(mutex_);
  // Leaves the loop, on its thread: no callback runs afterwards.
  void detach() EXCLUDES(mutex_);

 private:
  class ArtifactHold;

  // A pool that a producer rank announced.
  struct Mapped {
    TensorDesc desc;
    PoolLayout layout;
    std::shared_ptr<ImportedPool> pool;  // null while `status` says why; owners: this, and held artifacts
    Status status;
    bool requested = false;  // it was asked for again, and has not come yet
  };

  struct Source {
    explicit Source(EventLoop& loop) : link(loop) {}
    StateMachine<kSourceTransitions, SourceState> state{SourceState::kBound};
    PeerLink link;
    std::unique_ptr<Link> greeted;  // between the handshake and the loop
    std::unique_ptr<ControlMemory> control_memory;
    std::optional<ControlBlock> control;
    std::map<uint32_t, Mapped> pools;               // by profile; at most profiles_max
    bool pools_gone = false;                        // and none comes any more: it is done with, or dead and unmapped
    std::vector<int64_t> last_generation;           // by row and slot: what was published there last
    std::vector<uint64_t> known_fills;              // by row and slot: those that were published or guessed
    std::shared_ptr<const RecordShape> last_shape;  // of its last publication; null if that had a ticket
  };

  struct Artifact {
    StateMachine<kArtifactTransitions, ArtifactState> state{ArtifactState::kAwaited};
    std::vector<std::shared_ptr<const Record>> records;  // by publishing rank; owners: this, and a claim
    uint64_t ended_by = 0;                               // bit p: rank p published or aborted it
    Status aborted;                                      // the first reason, if a rank aborted it
    bool receiving = false;                              // a call waits for it
    bool claimed = false;                                // the caller knows its end, or gave it up
    std::function<void(const Status&)> done;             // of discard()
  };

  // What is read of an artifact: the same for all whose records have the same shapes and no one-shot buffer. Constant.
  struct Plan {
    std::vector<std::shared_ptr<const RecordShape>> shapes;  // by rank
    // The pool of every leaf that is read, by rank and leaf.
    std::vector<std::vector<std::shared_ptr<ImportedPool>>> pools;
    std::vector<LeafPlan> leaves;
    std::vector<std::vector<bool>> read;  // by rank and word of its record: something is read from it
    uint64_t bytes = 0;

    // No leaf is put together from several slots, and this rank's device reads them where they are.
    bool canBeLent() const;
  };

  // What receive(), take() and borrow() work on once everything arrived.
  struct Claim {
    std::vector<std::shared_ptr<const Record>> records;  // by rank
    std::shared_ptr<const Plan> plan;                    // owners: claims, and the endpoint for the next one
  };

  // Targets of an artifact that is waited for, made for the plan of the last one; of no use to another plan.
  struct Targets {
    std::shared_ptr<const Plan> plan;
    std::vector<TensorView> views;  // by leaf
    ArtifactTree tree;              // over them
  };

  // What an artifact is that a waiting call sees to be filled, and whose records are on their way: most likely.
  struct Guess {
    Claim claim;  // records that are made up, or have come
    // By rank and slot of its record: counts. Empty of records that have come.
    std::vector<std::vector<uint64_t>> fills;
    Clock::TimePoint start{};  // of submitting its copies
    Clock::TimePoint end{};
  };

  // What a call that will copy has done while it waits.
  struct Ahead {
    explicit Ahead(Allocator& the_allocator) : allocator(the_allocator) {}
    Allocator& allocator;
    Targets targets;
    std::optional<Guess> submitted;  // what is read into the targets, to its end in stream order
  };

  // A call that waits.
  struct Waiting {
    const SequenceNumber sequence;
    Ahead* const ahead;  // of a call that will copy
    const WaitOptions& options;
    std::vector<ProgressWatch> watches;  // of the ranks
    bool reads = false;                  // the sockets are this call's to read
  };

  // An artifact out of its slots, whose reads are complete in stream order and not acknowledged.
  struct Copied {
    ArtifactTree tree;
    Claim claim;
  };

  // ---- consumer_core.cc: the calls ----------------------------------------------------------------------------
  StatusOr<Copied> copy(SequenceNumber sequence, Allocator& allocator, const WaitOptions& wait) EXCLUDES(mutex_);
  static Status completeReads(const Claim& claim);
  // Acknowledges, if the reads are complete, or will be in stream order.
  Status finish(SequenceNumber sequence, const Claim& claim, const Status& completed) EXCLUDES(mutex_);
  void giveUp(SequenceNumber sequence, std::string_view reason) EXCLUDES(mutex_);
  Status rememberDiscard(SequenceNumber sequence, std::string_view reason, std::function<void(const Status&)> done)
      REQUIRES(mutex_);
  void countDiscard(std::string_view reason) REQUIRES(mutex_);

  // ---- consumer_wait.cc: waiting for a number -------------------------------------------------------------------
  // `ahead`: of a call that will copy.
  StatusOr<Claim> await(SequenceNumber sequence, ArtifactState next, Ahead* ahead, const WaitOptions& wait)
      EXCLUDES(mutex_);
  Status waitArrived(SequenceNumber sequence, Ahead* ahead, const WaitOptions& wait) REQUIRES(mutex_);
  bool hasArrived(SequenceNumber sequence) const REQUIRES(mutex_);
  // `at_once`: without looking or sleeping first.
  Status waitOnce(Waiting& waiting, bool at_once) REQUIRES(mutex_);
  void lookAround(const Waiting& waiting) REQUIRES(mutex_);
  void letOthersRun() REQUIRES(mutex_);
  void sleepUntilReadable(Clock::Duration longest) REQUIRES(mutex_);
  // True if anything came.
  bool readSources() REQUIRES(mutex_);
  // While muted the loop does not read.
  void setMuted(bool muted) REQUIRES(mutex_);
  void wakeWaiters() REQUIRES(mutex_);

  // ---- consumer_ahead.cc: what a waiting call does before the records are there ---------------------------------
  // True if it did something, without the lock: if a publication is announced, makes the targets of one like the last,
  // and submits a copy of its kind: a thread that has slept takes several times as long for the first.
  bool prepareIfComing(Ahead& ahead) REQUIRES(mutex_);
  void makeTargetsAhead(const std::shared_ptr<const Plan>& plan, Ahead& ahead) const EXCLUDES(mutex_);
  // The same: if all slots of an artifact like the last are filled, reads them. Another guess takes the place of the
  // last.
  bool readIfFilled(Ahead& ahead, SequenceNumber sequence) REQUIRES(mutex_);
  // By the first leaf of each rank alone: cheap, for a call that looks.
  bool mayBeFilled(SequenceNumber sequence) const REQUIRES(mutex_);
  std::optional<Guess> guess(SequenceNumber sequence) const REQUIRES(mutex_);
  // The record of what this rank has filled like the last time and not published, as far as is known here, with counts.
  std::shared_ptr<const Record> guessRecord(size_t rank, SequenceNumber sequence, std::vector<uint64_t>& fills) const
      REQUIRES(mutex_);
  void readAhead(Ahead& ahead, Guess guess) EXCLUDES(mutex_);
  // True if what was read ahead is what the claim says.
  bool takeAhead(const Ahead& ahead, const Claim& claim, const WaitOptions& wait) EXCLUDES(mutex_);

  // ---- consumer_reads.cc: what to read, and reading it ----------------------------------------------------------
  StatusOr<Claim> claim(const Artifact& artifact) REQUIRES(mutex_);
  StatusOr<std::shared_ptr<const Plan>> planOf(const Claim& claim) REQUIRES(mutex_);
  Status planLeafOf(const Claim& claim, size_t leaf, Plan& plan) REQUIRES(mutex_);
  StatusOr<std::shared_ptr<ImportedPool>> poolOf(const Record& record, size_t rank, size_t leaf, Plan& plan)
      REQUIRES(mutex_);
  StatusOr<Targets> makeTargets(std::shared_ptr<const Plan> plan, Allocator& allocator) const EXCLUDES(mutex_);
  Status readInto(const Targets& targets, const Claim& claim, std::string_view fault_point) const EXCLUDES(mutex_);
  // Into `targets`, if they are of the claim's plan.
  StatusOr<ArtifactTree> copyOut(const Claim& claim, Allocator& allocator, Targets targets) EXCLUDES(mutex_);
  StatusOr<ArtifactTree> lend(const Claim& claim) EXCLUDES(mutex_);

  // ---- consumer_handshake.cc ------------------------------------------------------------------------------------
  Status greet(Source& source, Rank producer, const std::string& address, Clock::TimePoint deadline);
  StatusOr<v1::Message> readOne(Link& link, Clock::TimePoint deadline, Frame& frame) const;

  // ---- consumer_sources.cc: messages, and the numbers that they are of ------------------------------------------
  void onSource(size_t rank, uint32_t events) EXCLUDES(mutex_);
  // Reads what came; true if there was anything.
  bool readSource(size_t rank) REQUIRES(mutex_);
  Status onMessage(size_t rank, const v1::Message& message, Frame& frame) REQUIRES(mutex_);
  // `ticket`: of the message, if it has one.
  Status onRecord(size_t rank, Record record, const v1::Ticket* ticket, Frame& frame) REQUIRES(mutex_);
  Status onAborted(size_t rank, const v1::Aborted& message) REQUIRES(mutex_);
  Status checkGenerations(size_t rank, const Record& record, bool& stale) REQUIRES(mutex_);
  // Null if the number has ended here.
  StatusOr<Artifact*> findOrAdd(SequenceNumber sequence) REQUIRES(mutex_);
  void acknowledge(size_t rank, const Record& record, const std::vector<bool>& read) REQUIRES(mutex_);
  void discardArrived(Artifact& artifact) REQUIRES(mutex_);
  void endIfComplete(SequenceNumber sequence) REQUIRES(mutex_);
  void sendTo(Source& source, const v1::Message& message) REQUIRES(mutex_);
  void callLater(std::function<void()> callback);
  std::string describe(size_t producer) const;
  v1::Message newMessage() const;
  uint64_t everyRank() const;

  // ---- consumer_pools.cc ----------------------------------------------------------------------------------------
  Status onPool(size_t rank, const v1::PoolAnnounce& announcement, Frame& frame) REQUIRES(mutex_);
  // Asks for the pools of the record that could not be mapped once more.
  void requestLostPools(size_t rank, const Record& record) REQUIRES(mutex_);
  bool awaitsPool(const Artifact& artifact) const REQUIRES(mutex_);
  // Moves it on once every rank has published it and no pool that it needs is on its way.
  void arriveIfComplete(Artifact& artifact) REQUIRES(mutex_);
  Status importOneShot(Record& record, const v1::Ticket& ticket, Frame& frame);

  // ---- consumer_end.cc ------------------------------------------------------------------------------------------
  void sourceGone(size_t rank) REQUIRES(mutex_);
  void failLocked(const Status& status, bool orderly = false) REQUIRES(mutex_);
  void retireLocked() REQUIRES(mutex_);
  void advanceRetireLocked() REQUIRES(mutex_);
  // advanceRetireLocked() once more, when a device may have caught up.
  void lookAgainLocked() REQUIRES(mutex_);
  StatusOr<bool> tryUnmapAll(Source& source) REQUIRES(mutex_);
  void closeGoneLinks() EXCLUDES(mutex_);

  // Into what a source keeps by row and slot.
  size_t wordIndex(RowIndex row, SlotIndex slot) const { return size_t{row.value} * spec_.slots + slot.value; }

  const ChannelSpec spec_;
  const Rank rank_;
  const Device device_;
  const ChannelContext context_;
  const ConsumerCallbacks callbacks_;
  const UniqueFd wake_;    // an eventfd that ends the poll of the thread that reads
  bool detached_ = false;  // loop's thread only

  std::vector<ControlBlock> controls_;  // of sources_; constant once connect() returned: their words are atomic

  mutable Mutex mutex_;
  CondVar changed_;
  StateMachine<kEndpointTransitions, EndpointState> state_ GUARDED_BY(mutex_){EndpointState::kOpen};
  Status failure_ GUARDED_BY(mutex_);                                // not OK from the moment the endpoint leaves kOpen
  Status told_peers_ GUARDED_BY(mutex_);                             // why it retires; OK for close()
  std::vector<Source> sources_ GUARDED_BY(mutex_);                   // by publishing rank
  std::map<SequenceNumber, Artifact> artifacts_ GUARDED_BY(mutex_);  // at most kPendingArtifactsMax
  SequenceSet ended_ GUARDED_BY(mutex_);
  uint32_t readers_ GUARDED_BY(mutex_) = 0;  // artifacts being copied, ahead too, or borrowed: pools stay mapped
  DrainLook drain_look_ GUARDED_BY(mutex_);
  std::shared_ptr<const Plan> plan_ GUARDED_BY(mutex_);  // the last one without a one-shot buffer
  bool guesses_ GUARDED_BY(mutex_) = true;               // not after a wrong guess, until a record is like its last
  bool announces_ GUARDED_BY(mutex_) = false;            // somebody does
  Clock::TimePoint look_until_ GUARDED_BY(mutex_){};     // until then a publication is about to arrive
  bool coming_ GUARDED_BY(mutex_) = false;               // and nobody has prepared for it
  bool reading_ GUARDED_BY(mutex_) = false;              // a waiting call reads the sockets; the loop does not
  bool asleep_ GUARDED_BY(mutex_) = false;               // in poll()
  ConsumerStats stats_ GUARDED_BY(mutex_);
};

}  // namespace latentd::channel
