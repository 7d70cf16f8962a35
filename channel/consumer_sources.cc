#include <sys/epoll.h>

#include <string>
#include <utility>

#include "channel/consumer_core.h"
#include "channel/limits.h"
#include "channel/message.h"
#include "runtime/base/check.h"
#include "runtime/base/fault_point.h"

// The part of ConsumerCore that talks to producer ranks: messages, and acknowledgements.
namespace latentd::channel {
namespace {

Status brokenRule(const std::string& what) { return makeStatus(absl::StatusCode::kInternal, what); }

}  // namespace

v1::Message ConsumerCore::newMessage() const {
  v1::Message message;
  message.set_epoch(spec_.consumer_epoch.value);
  return message;
}

std::string ConsumerCore::describe(size_t producer) const {
  return "producer rank " + std::to_string(producer) + " of " + spec_.edge + " (epoch " +
         std::to_string(spec_.producer_epoch.value) + ")";
}

uint64_t ConsumerCore::everyRank() const {
  const uint32_t ranks = publishingRanks(spec_);
  return ranks == 64 ? ~uint64_t{0} : (uint64_t{1} << ranks) - 1;
}

void ConsumerCore::callLater(std::function<void()> callback) {
  context_.loop->post([self = shared_from_this(), callback = std::move(callback)] {
    if (!self->detached_) callback();
  });
}

// ---- messages ------------------------------------------------------------------------------------------------

void ConsumerCore::sendTo(Source& source, const v1::Message& message) {
  if (source.state.is(SourceState::kGone)) return;
  const StatusOr<OutFrame> frame = encodeMessage(message);
  LATENTD_CHECK(frame.ok(), "a consumer's messages are short");
  const Status sent = source.link.send(*frame);
  // A dead peer is noticed by reading; one that does not read is as good as dead. Later, because a failure forgets the
  // numbers that the callers work on.
  if (sent.code() != absl::StatusCode::kResourceExhausted) return;
  callLater([this, sent] {
    MutexLock lock(mutex_);
    failLocked(sent);
  });
}

void ConsumerCore::onSource(size_t rank, uint32_t events) {
  MutexLock lock(mutex_);
  PeerLink& link = sources_[rank].link;
  if (!link.isOpen()) return;
  if ((events & EPOLLOUT) != 0) link.flush().IgnoreError();  // a dead peer is noticed by reading
  if (readSource(rank)) wakeWaiters();
}

bool ConsumerCore::readSource(size_t rank) {
  Source& source = sources_[rank];
  Frame frame;
  v1::Message message;
  bool any = false;
  while (!source.state.is(SourceState::kGone) && source.link.isOpen()) {
    const StatusOr<Link::Received> received = source.link.receive(frame);
    if (received.ok() && *received == Link::Received::kNothing) break;
    any = true;
    if (received.ok() && *received == Link::Received::kClosed) {
      sourceGone(rank);
      break;
    }
    Status handled = received.status();
    if (handled.ok()) handled = parseMessage(frame, message);
    if (handled.ok() && message.epoch() != spec_.producer_epoch.value) {
      ++stats_.stale_dropped;
      continue;
    }
    if (handled.ok()) handled = onMessage(rank, message, frame);
    if (!handled.ok()) {
      failLocked(unhandled(describe(rank), handled));
      sourceGone(rank);
    }
  }
  return any;
}

Status ConsumerCore::onMessage(size_t rank, const v1::Message& message, Frame& frame) {
  Source& source = sources_[rank];
  if (message.has_retire_dropped() && source.state.is(SourceState::kUnmapped)) {
    source.pools.clear();  // destroys this side's events
    source.pools_gone = true;
    v1::Message done = newMessage();
    done.mutable_retire_done();
    sendTo(source, done);
    sourceGone(rank);
    return absl::OkStatus();
  }
  // What was sent before the producer learned that this side ends.
  if (!failure_.ok()) return absl::OkStatus();
  switch (message.kind_case()) {
    case v1::Message::kPublication: {
      const v1::Publication& publication = message.publication();
      LATENTD_ASSIGN_OR_RETURN(Record record, parseRecord(publication, spec_));
      return onRecord(rank, std::move(record), publication.has_ticket() ? &publication.ticket() : nullptr, frame);
    }
    case v1::Message::kAgain: {
      LATENTD_ASSIGN_OR_RETURN(Record record, parseAgain(message.again(), source.last_shape, spec_));
      guesses_ = true;
      return onRecord(rank, std::move(record), nullptr, frame);
    }
    case v1::Message::kAborted:
      return onAborted(rank, message.aborted());
    case v1::Message::kComing:
      ++stats_.announced;
      look_until_ = context_.clock->now() + kComingLook;
      coming_ = true;
      announces_ = true;
      return absl::OkStatus();
    case v1::Message::kPoolAnnounce:
      return onPool(rank, message.pool_announce(), frame);
    case v1::Message::kRetire: {
      const Status reason = readStatus(message.retire().status());
      failLocked(makeStatus(absl::StatusCode::kUnavailable,
                            describe(rank) + (reason.ok() ? " retired" : " failed: " + messageOf(reason))),
                 reason.ok());
      return absl::OkStatus();
    }
    default:
      return brokenRule("message " + std::to_string(message.kind_case()) + " is not a producer's, or not due");
  }
}

Status ConsumerCore::checkGenerations(size_t rank, const Record& record, bool& stale) {
  Source& source = sources_[rank];
  for (const RecordShape::Leaf& leaf : record.shape->leaves) {
    if (!leaf.row) continue;
    const auto pool = source.pools.find(leaf.row->value);
    if (pool == source.pools.end() || pool->second.desc != leaf.desc) {
      return brokenRule("a publication of " + leaf.desc.toString() + " names pool " + std::to_string(leaf.row->value) +
                        ", which is none for it");
    }
  }
  for (const SlotRef& ref : record.words()) {
    int64_t& last = source.last_generation[wordIndex(ref.row, ref.slot)];
    if (ref.generation.value <= last) {
      stale = true;
      return absl::OkStatus();
    }
    if (ref.generation.value != last + 1 || source.control->published(ref.row, ref.slot) != ref.generation) {
      return brokenRule("a publication names generation " + std::to_string(ref.generation.value) + " of row " +
                        std::to_string(ref.row.value) + " slot " + std::to_string(ref.slot.value) +
                        ", which is not the one in the slot");
    }
    last = ref.generation.value;
  }
  for (const SlotRef& ref : record.slots)
    source.known_fills[wordIndex(ref.row, ref.slot)] = source.control->fills(ref.row, ref.slot);
  return absl::OkStatus();
}

Status ConsumerCore::onRecord(size_t rank, Record record, const v1::Ticket* ticket, Frame& frame) {
  bool stale = false;
  LATENTD_RETURN_IF_ERROR(checkGenerations(rank, record, stale));
  if (stale) {
    ++stats_.stale_dropped;
    return absl::OkStatus();
  }
  LATENTD_ASSIGN_OR_RETURN(Artifact* const artifact, findOrAdd(record.sequence));
  if (artifact == nullptr || (artifact->ended_by >> rank & 1) != 0) {
    return brokenRule("number " + std::to_string(record.sequence.value) + " was published after it ended");
  }
  sources_[rank].last_shape = ticket == nullptr ? record.shape : nullptr;
  if (ticket != nullptr) LATENTD_RETURN_IF_ERROR(importOneShot(record, *ticket, frame));
  artifact->ended_by |= uint64_t{1} << rank;
  coming_ = false;
  const SequenceNumber sequence = record.sequence;
  artifact->records[rank] = std::make_shared<const Record>(std::move(record));
  if (artifact->state.is(ArtifactState::kDiscarding)) {
    discardArrived(*artifact);
    endIfComplete(sequence);
  } else {
    requestLostPools(rank, *artifact->records[rank]);
    arriveIfComplete(*artifact);
  }
  return absl::OkStatus();
}

Status ConsumerCore::onAborted(size_t rank, const v1::Aborted& message) {
  const SequenceNumber sequence(message.sequence());
  LATENTD_ASSIGN_OR_RETURN(Artifact* const artifact, findOrAdd(sequence));
  if (artifact == nullptr || (artifact->ended_by >> rank & 1) != 0) {
    ++stats_.stale_dropped;
    return absl::OkStatus();
  }
  const Status reason = readStatus(message.status());
  if (reason.ok()) return brokenRule("number " + std::to_string(message.sequence()) + " was aborted with OK");
  artifact->ended_by |= uint64_t{1} << rank;
  if (artifact->aborted.ok()) artifact->aborted = reason;
  if (artifact->state.is(ArtifactState::kAwaited)) artifact->state.move(ArtifactState::kDiscarding);
  discardArrived(*artifact);
  endIfComplete(sequence);
  return absl::OkStatus();
}

// ---- numbers -------------------------------------------------------------------------------------------------

StatusOr<ConsumerCore::Artifact*> ConsumerCore::findOrAdd(SequenceNumber sequence) {
  if (ended_.contains(sequence)) return nullptr;
  const auto found = artifacts_.find(sequence);
  if (found != artifacts_.end()) return &found->second;
  if (artifacts_.size() >= kPendingArtifactsMax || !ended_.canInsert(sequence)) {
    return makeStatus(absl::StatusCode::kResourceExhausted, std::to_string(artifacts_.size()) + " numbers of " +
                                                                spec_.edge + " have not ended, the first is " +
                                                                std::to_string(ended_.next().value) +
                                                                ": receive or discard them");
  }
  Artifact& artifact = artifacts_[sequence];
  artifact.records.resize(sources_.size());
  return &artifact;
}

void ConsumerCore::acknowledge(size_t rank, const Record& record, const std::vector<bool>& read) {
  Source& source = sources_[rank];
  // Its exporter frees a one-shot buffer at the acknowledgement; nobody reads it any more.
  if (record.ticket && record.ticket->buffer != nullptr) record.ticket->buffer->tryUnmap().IgnoreError();
  const std::vector<SlotRef> words = record.words();
  for (size_t i = 0; i < words.size(); ++i)
    source.control->acknowledge(words[i], rank_, read[i]);
  source.control->noteConsumerProgress(rank_);
  // The words are written: this point can only stop or end the process.
  if (context_.faults != nullptr) context_.faults->hit("channel.consumer.acknowledged").IgnoreError();
  v1::Message message = newMessage();
  message.mutable_doorbell()->set_sequence(record.sequence.value);
  sendTo(source, message);
}

void ConsumerCore::discardArrived(Artifact& artifact) {
  for (size_t p = 0; p < artifact.records.size(); ++p) {
    const std::shared_ptr<const Record> record = std::move(artifact.records[p]);
    artifact.records[p] = nullptr;
    if (record != nullptr) acknowledge(p, *record, std::vector<bool>(record->words().size(), false));
  }
}

void ConsumerCore::endIfComplete(SequenceNumber sequence) {
  const auto found = artifacts_.find(sequence);
  if (found == artifacts_.end()) return;  // acknowledging found a peer that does not read: the channel failed
  Artifact& artifact = found->second;
  if (!artifact.state.is(ArtifactState::kDiscarding) || !artifact.claimed || artifact.ended_by != everyRank()) return;
  artifact.state.move(ArtifactState::kEnded);
  if (artifact.done) callLater([done = std::move(artifact.done)] { done(absl::OkStatus()); });
  artifacts_.erase(found);
  ended_.insert(sequence);
}

}  // namespace latentd::channel
