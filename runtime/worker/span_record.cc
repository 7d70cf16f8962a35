#include "runtime/worker/span_record.h"

#include <chrono>

#include "runtime/base/nanoseconds.h"

namespace latentd::worker {
namespace {

v1::SpanKind kindOf(channel::HandoffPhase phase) {
  switch (phase) {
    case channel::HandoffPhase::kSlotWait:
      return v1::SPAN_KIND_SLOT_WAIT;
    case channel::HandoffPhase::kStaging:
      return v1::SPAN_KIND_STAGING_COPY;
    case channel::HandoffPhase::kPublish:
      return v1::SPAN_KIND_PUBLISH;
    case channel::HandoffPhase::kInputWait:
      return v1::SPAN_KIND_INPUT_WAIT;
    case channel::HandoffPhase::kCopy:
      return v1::SPAN_KIND_TARGET_COPY;
    case channel::HandoffPhase::kAcknowledge:
      return v1::SPAN_KIND_ACKNOWLEDGE;
  }
  return v1::SPAN_KIND_UNSPECIFIED;
}

}  // namespace

void SpanRecord::append(const Span& span, size_t limit) {
  if (spans_.size() < limit) {
    spans_.push_back(span);
  } else {
    ++dropped_;
  }
}

void SpanRecord::add(v1::SpanKind kind, Clock::TimePoint start, Clock::TimePoint end) {
  if (enabled()) append({kind, start, end}, spans_max_);
}

void SpanRecord::addStep(uint32_t step, Clock::TimePoint start, Clock::TimePoint end) {
  if (enabled()) append({v1::SPAN_KIND_STEP, start, end, 0, 0, step}, spans_max_ - spans_max_ / 4);
}

void SpanRecord::addHandoff(const internal::v1::ArtifactRef& artifact, const channel::HandoffSpan& span) {
  if (!enabled()) return;
  append({kindOf(span.phase), span.start, span.end, artifact.channel_id(), artifact.sequence(), 0, span.bytes},
         spans_max_);
}

void SpanRecord::finish(Clock::TimePoint received, internal::v1::CommandTrace& trace) {
  if (!enabled()) return;
  spans_.push_back({v1::SPAN_KIND_COMMAND, received, std::chrono::steady_clock::now()});
  for (const Span& span : spans_) {
    internal::v1::Span& told = *trace.add_spans();
    told.set_kind(span.kind);
    told.set_start_ns(toNanoseconds(span.start));
    told.set_end_ns(toNanoseconds(span.end));
    told.set_step(span.step);
    told.set_bytes(span.bytes);
    if (span.channel_id == 0) continue;
    told.mutable_artifact()->set_channel_id(span.channel_id);
    told.mutable_artifact()->set_sequence(span.sequence);
  }
  trace.set_dropped(dropped_);
  spans_.clear();
}

}  // namespace latentd::worker
