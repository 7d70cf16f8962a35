#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "channel/handoff_observer.h"
#include "proto/worker.pb.h"
#include "runtime/base/clock.h"

namespace latentd::worker {

// What a command did and when, for its job's trace. Bounded: what comes after spans_max is only counted. A quarter is
// kept from steps, of which a command may have any number, for what follows them; the command itself has its place.
// Owner: the command's run. Thread: the executor's.
class SpanRecord {
 public:
  // 0: records nothing.
  explicit SpanRecord(size_t spans_max) : spans_max_(spans_max) {}

  bool enabled() const { return spans_max_ > 0; }
  void add(v1::SpanKind kind, Clock::TimePoint start, Clock::TimePoint end);
  void addStep(uint32_t step, Clock::TimePoint start, Clock::TimePoint end);
  void addHandoff(const internal::v1::ArtifactRef& artifact, const channel::HandoffSpan& span);
  // Ends the record with the command, from its receipt until now, and gives it away.
  void finish(Clock::TimePoint received, internal::v1::CommandTrace& trace);

 private:
  struct Span {
    v1::SpanKind kind;
    Clock::TimePoint start;
    Clock::TimePoint end;
    uint32_t channel_id = 0;
    uint64_t sequence = 0;
    uint32_t step = 0;
    uint64_t bytes = 0;
  };

  void append(const Span& span, size_t limit);

  const size_t spans_max_;
  std::vector<Span> spans_;
  uint64_t dropped_ = 0;
};

// Puts what a channel tells of one artifact into a record. Owner, thread: the caller of the channel.
class HandoffSpans final : public channel::HandoffObserver {
 public:
  HandoffSpans(SpanRecord& record, const internal::v1::ArtifactRef& artifact) : record_(record), artifact_(artifact) {}
  void onSpan(const channel::HandoffSpan& span) override { record_.addHandoff(artifact_, span); }

 private:
  SpanRecord& record_;
  const internal::v1::ArtifactRef& artifact_;
};

}  // namespace latentd::worker
