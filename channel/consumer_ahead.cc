#include <algorithm>
#include <utility>

#include "channel/consumer_core.h"
#include "channel/handoff_observer.h"

// The part of ConsumerCore that gets ready for an artifact, and reads it, before its records are there.
namespace latentd::channel {

bool ConsumerCore::prepareIfComing(Ahead& ahead) {
  if (!std::exchange(coming_, false) || plan_ == nullptr) return false;
  const std::shared_ptr<const Plan> plan = plan_;
  for (const auto& of_rank : plan->pools) {
    for (const std::shared_ptr<ImportedPool>& pool : of_rank) {
      if (pool != nullptr) pool->rehearse();
    }
  }
  mutex_.unlock();
  makeTargetsAhead(plan, ahead);
  mutex_.lock();
  return true;
}

void ConsumerCore::makeTargetsAhead(const std::shared_ptr<const Plan>& plan, Ahead& ahead) const {
  if (ahead.targets.plan == plan) return;
  ahead.submitted.reset();
  ahead.targets = {};  // before others take memory
  // What fails now fails, and is told, when it is for real; whatever it throws, a waiting call unwinds with its lock.
  try {
    StatusOr<Targets> made = makeTargets(plan, ahead.allocator);
    if (made.ok()) ahead.targets = *std::move(made);
  } catch (...) {
    return;
  }
}

// ---- what is filled ---------------------------------------------------------------------------------------------

bool ConsumerCore::mayBeFilled(SequenceNumber sequence) const {
  if (plan_ == nullptr || !guesses_ || !context_.backend->asynchronous()) return false;
  const Artifact& artifact = artifacts_.at(sequence);
  bool all_there = true;
  for (size_t p = 0; p < sources_.size(); ++p) {
    if (artifact.records[p] != nullptr) continue;
    all_there = false;
    const auto& leaves = plan_->shapes[p]->leaves;
    const auto first =
        std::find_if(leaves.begin(), leaves.end(), [](const auto& leaf) { return leaf.row.has_value(); });
    if (first == leaves.end()) continue;
    bool any = false;
    for (uint32_t slot = 0; slot < spec_.slots; ++slot) {
      const uint64_t known = sources_[p].known_fills[wordIndex(*first->row, SlotIndex(slot))];
      any = any || sources_[p].control->fills(*first->row, SlotIndex(slot)) != known;
    }
    if (!any) return false;
  }
  return !all_there;
}

std::shared_ptr<const Record> ConsumerCore::guessRecord(size_t rank, SequenceNumber sequence,
                                                        std::vector<uint64_t>& fills) const {
  const Source& source = sources_[rank];
  auto record = std::make_shared<Record>(Record{sequence, plan_->shapes[rank], {}, std::nullopt, absl::OkStatus()});
  for (const RecordShape::Leaf& leaf : record->shape->leaves) {
    if (!leaf.row) continue;
    std::optional<SlotRef> filled;
    for (uint32_t slot = 0; slot < spec_.slots; ++slot) {
      const size_t word = wordIndex(*leaf.row, SlotIndex(slot));
      const uint64_t count = source.control->fills(*leaf.row, SlotIndex(slot));
      if (count == source.known_fills[word]) continue;
      if (filled) return nullptr;  // which one is next, the records tell
      filled = SlotRef{*leaf.row, SlotIndex(slot), Generation(source.last_generation[word] + 1)};
      fills.push_back(count);
    }
    if (!filled) return nullptr;
    record->slots.push_back(*filled);
  }
  return record;
}

std::optional<ConsumerCore::Guess> ConsumerCore::guess(SequenceNumber sequence) const {
  const Artifact& artifact = artifacts_.at(sequence);
  Guess guess{{artifact.records, plan_}, std::vector<std::vector<uint64_t>>(sources_.size())};
  bool any = false;
  for (size_t p = 0; p < sources_.size(); ++p) {
    std::shared_ptr<const Record>& record = guess.claim.records[p];
    if (record == nullptr) {
      record = guessRecord(p, sequence, guess.fills[p]);
      any = any || !guess.fills[p].empty();
    }
    if (record == nullptr || record->shape != plan_->shapes[p]) return std::nullopt;
  }
  return any ? std::optional(std::move(guess)) : std::nullopt;
}

// ---- reading it -------------------------------------------------------------------------------------------------

bool ConsumerCore::readIfFilled(Ahead& ahead, SequenceNumber sequence) {
  if (!mayBeFilled(sequence)) return false;
  // What is filled after something that was guessed: the record of that was sent before, and tells what it is.
  if (ahead.submitted && readSources()) return true;
  std::optional<Guess> found = guess(sequence);
  if (!found) return false;
  for (size_t p = 0; p < sources_.size(); ++p) {
    for (size_t i = 0; i < found->fills[p].size(); ++i) {
      const SlotRef& ref = found->claim.records[p]->slots[i];
      sources_[p].known_fills[wordIndex(ref.row, ref.slot)] = found->fills[p][i];
    }
  }
  ++readers_;
  mutex_.unlock();
  readAhead(ahead, *std::move(found));
  mutex_.lock();
  --readers_;
  if (ahead.submitted) ++stats_.read_ahead;
  advanceRetireLocked();
  return true;
}

void ConsumerCore::readAhead(Ahead& ahead, Guess guess) {
  makeTargetsAhead(guess.claim.plan, ahead);
  ahead.submitted.reset();
  if (ahead.targets.plan != guess.claim.plan) return;
  guess.start = context_.clock->now();
  // What fails now fails, and is told, when it is for real; a waiting call unwinds with its lock.
  Status read = absl::InternalError("thrown");
  try {
    read = readInto(ahead.targets, guess.claim, "channel.consumer.reading_ahead");
  } catch (...) {
  }
  // Also of copies that were submitted before one that failed, and may still run.
  const Status completed = completeReads(guess.claim);
  if (!read.ok() || !completed.ok()) return;
  guess.end = context_.clock->now();
  ahead.submitted = std::move(guess);
}

bool ConsumerCore::takeAhead(const Ahead& ahead, const Claim& claim, const WaitOptions& wait) {
  if (!ahead.submitted) return false;
  const Guess& guess = *ahead.submitted;
  bool same = claim.plan == guess.claim.plan;
  for (size_t p = 0; same && p < claim.records.size(); ++p) {
    const std::vector<SlotRef>& slots = claim.records[p]->slots;
    same = slots == guess.claim.records[p]->slots;
    // Another fill since means that it is another one that was published. From now on there is none: nobody has
    // acknowledged.
    for (size_t i = 0; same && i < guess.fills[p].size(); ++i)
      same = controls_[p].fills(slots[i].row, slots[i].slot) == guess.fills[p][i];
  }
  if (same) {
    if (wait.observer != nullptr) {
      wait.observer->onSpan(
          {HandoffPhase::kCopy, claim.records[0]->sequence, guess.start, guess.end, claim.plan->bytes});
    }
    return true;
  }
  MutexLock lock(mutex_);
  ++stats_.reread;
  guesses_ = false;
  return false;
}

}  // namespace latentd::channel
