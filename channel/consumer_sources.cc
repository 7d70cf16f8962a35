#include <poll.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <stop_token>
#include <string>
#include <utility>

#include "channel/consumer_core.h"
#include "channel/handshake.h"
#include "channel/limits.h"
#include "channel/message.h"
#include "runtime/base/check.h"
#include "runtime/base/fault_point.h"

// The part of ConsumerCore that talks to producer ranks: handshake, messages, acknowledgements, and the end.
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

// ---- handshake -----------------------------------------------------------------------------------------------

Status ConsumerCore::connect(const std::vector<std::string>& addresses) {
  if (!wake_.valid()) return makeStatus(absl::StatusCode::kResourceExhausted, "no descriptor is free for an eventfd");
  const Clock::TimePoint deadline = context_.clock->now() + spec_.progress_timeout;
  const uint32_t ranks = publishingRanks(spec_);
  std::vector<Source> sources;
  for (uint32_t p = 0; p < ranks; ++p) {
    sources.emplace_back(*context_.loop);
    LATENTD_RETURN_IF_ERROR(
        annotate(greet(sources.back(), Rank(p), addresses[p], deadline), "connecting to " + describe(p)));
  }
  // Only once every rank has agreed: a rank that is bound takes the loss of its consumer for a death.
  v1::Message message = newMessage();
  message.mutable_bound();
  LATENTD_ASSIGN_OR_RETURN(const OutFrame frame, encodeMessage(message));
  for (Source& source : sources)
    LATENTD_RETURN_IF_ERROR(source.greeted->send(frame).status());
  {
    MutexLock lock(mutex_);
    sources_ = std::move(sources);
    for (const Source& source : sources_)
      controls_.push_back(*source.control);
  }
  Status opened;
  context_.loop->runAndWait([&] {
    MutexLock lock(mutex_);
    for (size_t p = 0; p < ranks && opened.ok(); ++p) {
      opened = sources_[p].link.open(std::move(sources_[p].greeted), [weak = weak_from_this(), p](uint32_t events) {
        if (const auto self = weak.lock()) self->onSource(p, events);
      });
    }
  });
  return opened;
}

Status ConsumerCore::greet(Source& source, Rank producer, const std::string& address, Clock::TimePoint deadline) {
  LATENTD_ASSIGN_OR_RETURN(source.greeted, context_.backend->connect(address));
  v1::Message message = newMessage();
  *message.mutable_hello() = makeHello(spec_, producer, rank_);
  LATENTD_ASSIGN_OR_RETURN(const OutFrame hello, encodeMessage(message));
  LATENTD_RETURN_IF_ERROR(source.greeted->send(hello).status());
  Frame frame;
  LATENTD_ASSIGN_OR_RETURN(const v1::Message answer, readOne(*source.greeted, deadline, frame));
  if (answer.has_refused()) {
    const Status reason = readStatus(answer.refused().status());
    return reason.ok() ? brokenRule("refused without a reason") : annotate(reason, "refused");
  }
  if (!answer.has_welcome()) return brokenRule("the answer to a handshake is none");
  LATENTD_RETURN_IF_ERROR(checkWelcome(answer.welcome(), spec_));
  if (frame.fds_lost) {
    return makeStatus(absl::StatusCode::kResourceExhausted,
                      "no descriptor is free for the control block: raise the open files limit");
  }
  const uint64_t bytes = answer.welcome().control_bytes();
  LATENTD_ASSIGN_OR_RETURN(source.control_memory,
                           context_.backend->importControl(answer.welcome().control(), std::move(frame.fds), bytes));
  LATENTD_ASSIGN_OR_RETURN(source.control, ControlBlock::bind(source.control_memory->memory(), spec_, producer));
  source.last_generation.assign(size_t{spec_.profiles_max} * spec_.slots + kTickets, 0);
  source.known_fills.assign(source.last_generation.size(), 0);
  return absl::OkStatus();
}

StatusOr<v1::Message> ConsumerCore::readOne(Link& link, Clock::TimePoint deadline, Frame& frame) const {
  // The count stays in the eventfd; nobody waits on it before this endpoint is bound, and it will not be.
  const std::stop_callback interrupt(context_.cancel, [this] {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof(one));
  });
  for (;;) {
    if (context_.cancel.stop_requested()) {
      return makeStatus(absl::StatusCode::kCancelled, "the handshake was cancelled");
    }
    LATENTD_ASSIGN_OR_RETURN(const Link::Received received, link.receive(frame));
    if (received == Link::Received::kClosed) {
      return makeStatus(absl::StatusCode::kUnavailable, "it closed the connection during the handshake");
    }
    if (received == Link::Received::kFrame) {
      v1::Message message;
      LATENTD_RETURN_IF_ERROR(parseMessage(frame, message));
      return message;
    }
    const Clock::Duration left = deadline - context_.clock->now();
    if (left <= Clock::Duration::zero()) {
      return makeStatus(
          absl::StatusCode::kDeadlineExceeded,
          "it did not answer the handshake within " + std::to_string(spec_.progress_timeout.count()) + " ms");
    }
    pollfd waited[]{{link.pollFd(), POLLIN, 0}, {wake_.get(), POLLIN, 0}};
    ::poll(waited, std::size(waited), static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(left).count()));
  }
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
      failLocked(brokenRule(describe(rank) + " broke the protocol: " + messageOf(handled)));
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

// ---- the end -------------------------------------------------------------------------------------------------

void ConsumerCore::sourceGone(size_t rank) {
  Source& source = sources_[rank];
  if (source.state.is(SourceState::kGone)) return;
  source.state.move(SourceState::kGone);
  failLocked(makeStatus(absl::StatusCode::kUnavailable, describe(rank) + " died: its connection ended"));
  context_.loop->post([self = shared_from_this()] { self->closeGoneLinks(); });
  advanceRetireLocked();
}

void ConsumerCore::closeGoneLinks() {
  MutexLock lock(mutex_);
  for (Source& source : sources_) {
    if (source.state.is(SourceState::kGone)) source.link.close();
  }
}

void ConsumerCore::failLocked(const Status& status, bool orderly) {
  if (!failure_.ok()) return;
  failure_ = status;
  if (!orderly) told_peers_ = status;
  if (!orderly && callbacks_.on_failed) callLater([this, status] { callbacks_.on_failed(status); });
  retireLocked();
}

void ConsumerCore::retireLocked() {
  state_.move(EndpointState::kRetiring);
  plan_ = nullptr;  // holds pools
  for (auto entry = artifacts_.begin(); entry != artifacts_.end();) {
    Artifact& artifact = entry->second;
    // What is being read ends when its reader does.
    if (artifact.state.is(ArtifactState::kCopying) || artifact.state.is(ArtifactState::kBorrowed)) {
      ++entry;
      continue;
    }
    if (artifact.done) callLater([done = std::move(artifact.done), status = failure_] { done(status); });
    entry = artifacts_.erase(entry);
  }
  wakeWaiters();
  advanceRetireLocked();
}

void ConsumerCore::advanceRetireLocked() {
  if (!state_.is(EndpointState::kRetiring) || readers_ > 0) return;
  for (Source& source : sources_) {
    if (source.state.is(SourceState::kUnmapped) || source.pools_gone) continue;
    // A device that never answers keeps its mappings: join() runs into its deadline and the process is recycled.
    const StatusOr<bool> unmapped = tryUnmapAll(source);
    if (unmapped.ok() && !*unmapped) lookAgainLocked();
    if (!unmapped.ok() || !*unmapped) continue;
    if (source.state.is(SourceState::kGone)) {
      source.pools.clear();
      source.pools_gone = true;
    }
    if (!source.state.is(SourceState::kBound)) continue;
    source.state.move(SourceState::kUnmapped);
    v1::Message message = newMessage();
    writeStatus(told_peers_, *message.mutable_retire_unmapped()->mutable_status());
    sendTo(source, message);
  }
  const auto gone = [](const Source& source) { return source.state.is(SourceState::kGone) && source.pools_gone; };
  if (!std::all_of(sources_.begin(), sources_.end(), gone)) return;
  state_.move(EndpointState::kRetired);
  if (callbacks_.on_retired) callLater(callbacks_.on_retired);
  changed_.notifyAll();
}

StatusOr<bool> ConsumerCore::tryUnmapAll(Source& source) {
  for (auto& [profile, mapped] : source.pools) {
    if (mapped.pool == nullptr) continue;
    LATENTD_ASSIGN_OR_RETURN(const bool unmapped, mapped.pool->tryUnmap());
    if (!unmapped) return false;
  }
  return true;
}

void ConsumerCore::lookAgainLocked() {
  drain_look_.request(*context_.loop, *context_.clock, [weak = weak_from_this()] {
    const auto core = weak.lock();
    if (!core || core->detached_) return;
    MutexLock lock(core->mutex_);
    core->drain_look_.done();
    core->advanceRetireLocked();
  });
}

void ConsumerCore::detach() {
  context_.loop->runAndWait([this] {
    detached_ = true;
    MutexLock lock(mutex_);
    for (Source& source : sources_)
      source.link.close();
  });
}

}  // namespace latentd::channel
