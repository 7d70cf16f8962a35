#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "channel/ack_ledger.h"
#include "channel/backend.h"
#include "channel/channel.h"
#include "channel/control_block.h"
#include "channel/drain_look.h"
#include "channel/endpoint_state.h"
#include "channel/peer_link.h"
#include "channel/progress_watch.h"
#include "channel/record.h"
#include "channel/sequence_set.h"
#include "channel/staging.h"
#include "runtime/base/event_loop.h"
#include "runtime/base/mutex.h"

namespace latentd::channel {

// The sending side of the protocol, whatever the backend.
// Owner: ProducerEndpoint (producer.cc); shared with callbacks in the loop, which hold it weakly.
// Thread: public calls as channel.h says; on...() on the loop's thread. One lock guards everything that both touch; it
// is not held while storage is allocated or filled, nor in callbacks. States: EndpointState, and PeerState for each
// consumer rank. Failure: sticky, in failure_.
class ProducerCore : public std::enable_shared_from_this<ProducerCore> {
 public:
  ProducerCore(const ChannelSpec& spec, Rank rank, const ChannelContext& context, ProducerCallbacks callbacks);

  // On the loop's thread.
  Status listen(const std::string& address);

  Status publish(SequenceNumber sequence, const ArtifactTree& tree, const WaitOptions& wait) EXCLUDES(mutex_);
  Status abort(SequenceNumber sequence, const Status& reason) EXCLUDES(mutex_);
  void announce() EXCLUDES(mutex_);
  void noteProgress() EXCLUDES(mutex_);
  bool bound() const EXCLUDES(mutex_);
  ProducerStats stats() const EXCLUDES(mutex_);
  void close() EXCLUDES(mutex_);
  Status join(Clock::TimePoint deadline) EXCLUDES(mutex_);
  // Leaves the loop, on its thread: no callback runs afterwards.
  void detach() EXCLUDES(mutex_);

 private:
  // A publication while it is put together. Taken slots go back when it dies unpublished.
  struct Draft {
    struct Taken {
      RowIndex row;
      SlotIndex slot;
    };

    SequenceNumber sequence;
    std::vector<TensorView> leaves;
    std::shared_ptr<const RecordShape> last;  // this one's shape is that of the last
    std::shared_ptr<RecordShape> fresh;       // or another one
    std::vector<Taken> taken;                 // of the pooled leaves, in their order, then the ticket
    std::vector<uint32_t> unpooled;           // leaves without a pool
    std::unique_ptr<ExportedPool> one_shot;   // holds them
    uint64_t one_shot_bytes = 0;
    uint64_t reserved = 0;
    uint64_t bytes = 0;
    Clock::TimePoint start;
    Clock::Duration slot_wait{};

    std::shared_ptr<const RecordShape> shape() const { return last != nullptr ? last : fresh; }
  };

  // One connection that has not finished its handshake.
  struct Stranger {
    std::unique_ptr<Link> link;
    EventLoop::Watch watch;
    EventLoop::TimerId deadline;
    std::optional<Rank> rank;  // Hello was accepted; Bound is awaited
  };

  struct Peer {
    explicit Peer(EventLoop& loop) : link(loop) {}
    StateMachine<kPeerTransitions, PeerState> state{PeerState::kAbsent};
    PeerLink link;
  };

  // ---- producer_core.cc: the calls ----------------------------------------------------------------------------
  Status publishNow(Draft& draft, const ArtifactTree& tree, const WaitOptions& wait) EXCLUDES(mutex_);
  Status checkOpenNumber(SequenceNumber sequence) const REQUIRES(mutex_);
  Status commit(Draft& draft) EXCLUDES(mutex_);
  void flushPeers() EXCLUDES(mutex_);
  void giveBack(Draft& draft) EXCLUDES(mutex_);
  void reach(std::string_view fault_point) const;

  // ---- producer_stage.cc: tensors into slots --------------------------------------------------------------------
  // Nothing differs from the last publication but what the tensors hold.
  bool isLikeLast(const std::vector<TensorView>& leaves, const ArtifactTree& tree) const;
  // The shape of one that differs.
  Status makeShape(Draft& draft, const ArtifactTree& tree) EXCLUDES(mutex_);
  bool isCut(const TensorView& leaf) const;
  // That it is a part of its grid, cut as the channel says.
  Status checkTokens(const TensorView& leaf) const;
  Status stageLeaf(Draft& draft, uint32_t index, const WaitOptions& wait) EXCLUDES(mutex_);
  Status stageUnpooled(Draft& draft, const WaitOptions& wait) EXCLUDES(mutex_);
  StatusOr<std::optional<RowIndex>> profileOf(uint32_t leaf, const TensorDesc& desc) EXCLUDES(mutex_);
  StatusOr<SlotIndex> acquire(Draft& draft, RowIndex row, uint64_t unpooled_bytes, const WaitOptions& wait)
      EXCLUDES(mutex_);
  // Says whether it blocked.
  StatusOr<SlotIndex> acquireSlot(RowIndex row, uint64_t unpooled_bytes, const WaitOptions& wait, bool& waited)
      EXCLUDES(mutex_);
  Status waitOnce(RowIndex row, const WaitOptions& wait, std::vector<ProgressWatch>& watches) REQUIRES(mutex_);

  // ---- producer_handshake.cc: connections, on the loop's thread -------------------------------------------------
  void onConnection() EXCLUDES(mutex_);
  void onStranger(uint64_t id) EXCLUDES(mutex_);
  Status greet(Stranger& stranger, const v1::Hello& hello) EXCLUDES(mutex_);
  Status bind(Stranger& stranger) EXCLUDES(mutex_);
  void dismiss(uint64_t id) EXCLUDES(mutex_);

  // ---- producer_peers.cc: messages ------------------------------------------------------------------------------
  void onPeer(Rank rank, uint32_t events) EXCLUDES(mutex_);
  Status readPeer(Rank rank) REQUIRES(mutex_);
  Status onMessage(Rank rank, const v1::Message& message) REQUIRES(mutex_);
  Status onDoorbell(Rank rank, const v1::Doorbell& doorbell) REQUIRES(mutex_);
  void freeLater(Staging::Freed freed) REQUIRES(mutex_);
  Status announce(RowIndex row, Peer& peer) REQUIRES(mutex_);
  // Unless it was said a moment ago: whether it was said now.
  bool sayComing() EXCLUDES(mutex_);
  // A copy of the next publication's kind, in the last one's pools; fills no slot.
  void rehearse() EXCLUDES(mutex_);
  void sendTo(Peer& peer, OutFrame frame) REQUIRES(mutex_);
  // flushPeers() must follow.
  void enqueueFor(Peer& peer, OutFrame frame) REQUIRES(mutex_);
  // Runs on the loop's thread unless detach() came first.
  void callLater(std::function<void()> callback);
  std::string describe(Rank consumer) const;
  v1::Message newMessage() const;

  // ---- producer_end.cc ------------------------------------------------------------------------------------------
  void peerGone(Rank rank) REQUIRES(mutex_);
  void failLocked(const Status& status) REQUIRES(mutex_);
  void retireLocked(const Status& told_peers) REQUIRES(mutex_);
  void advanceRetireLocked() REQUIRES(mutex_);
  // advanceRetireLocked() once more, when a device may have caught up.
  void lookAgainLocked() REQUIRES(mutex_);
  void closeListener();

  const ChannelSpec spec_;
  const Rank rank_;
  const ChannelContext context_;
  const ProducerCallbacks callbacks_;
  const bool publishes_;
  OutFrame coming_;  // always the same; on the path of every hand-off

  std::unique_ptr<ControlMemory> control_memory_;
  std::optional<ControlBlock> control_;  // set before anything else runs; its words are atomic

  // Loop's thread only.
  std::unique_ptr<Listener> listener_;
  EventLoop::Watch listener_watch_;
  std::map<uint64_t, Stranger> strangers_;
  uint64_t next_stranger_ = 0;
  bool detached_ = false;

  mutable Mutex mutex_;
  CondVar changed_;
  StateMachine<kEndpointTransitions, EndpointState> state_ GUARDED_BY(mutex_){EndpointState::kOpen};
  Status failure_ GUARDED_BY(mutex_);           // not OK from the moment the endpoint leaves kOpen
  std::vector<Peer> peers_ GUARDED_BY(mutex_);  // as many as at the start
  std::vector<PeerLink*> links_;                // of peers_, for flush() alone, which takes a lock of their own
  Staging staging_;                             // GUARDED_BY(mutex_), save what its comment excepts
  AckLedger ledger_ GUARDED_BY(mutex_);
  SequenceSet ended_ GUARDED_BY(mutex_);
  std::optional<SequenceNumber> publishing_ GUARDED_BY(mutex_);
  std::optional<SequenceNumber> last_published_ GUARDED_BY(mutex_);
  bool bound_ GUARDED_BY(mutex_) = false;
  std::optional<Clock::TimePoint> announced_ GUARDED_BY(mutex_);  // since the last publication, the last time
  uint32_t comings_ GUARDED_BY(mutex_) = 0;                       // and how often
  std::shared_ptr<const RecordShape> last_shape_;                 // publish()'s thread; null if it had a ticket
  DrainLook drain_look_ GUARDED_BY(mutex_);
  ProducerStats stats_ GUARDED_BY(mutex_);
};

}  // namespace latentd::channel
