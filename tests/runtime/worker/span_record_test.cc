#include "runtime/worker/span_record.h"

#include <chrono>

#include "tests/support/catch.h"

namespace latentd::worker {

using std::chrono::microseconds;

TEST_CASE("span_record: keeps at most its bound, a place for the command, and counts the rest", "[worker]") {
  SpanRecord record(8);
  const Clock::TimePoint start = std::chrono::steady_clock::now();
  for (uint32_t step = 0; step < 100; ++step)
    record.addStep(step, start, start + microseconds(5));
  // Of what follows the steps a quarter of the bound is kept.
  for (int i = 0; i < 3; ++i)
    record.add(v1::SPAN_KIND_OUTPUTS, start, start);
  internal::v1::CommandTrace trace;
  record.finish(start, trace);
  REQUIRE(trace.spans_size() == 9);
  CHECK(trace.dropped() == 94 + 1);
  CHECK(trace.spans(5).kind() == v1::SPAN_KIND_STEP);
  CHECK(trace.spans(5).step() == 5);
  CHECK(trace.spans(5).end_ns() - trace.spans(5).start_ns() == 5000);
  CHECK(trace.spans(7).kind() == v1::SPAN_KIND_OUTPUTS);
  CHECK(trace.spans(8).kind() == v1::SPAN_KIND_COMMAND);
  CHECK(trace.spans(8).start_ns() == trace.spans(0).start_ns());
}

TEST_CASE("span_record: what a channel tells names its artifact", "[worker]") {
  SpanRecord record(4);
  internal::v1::ArtifactRef artifact;
  artifact.set_channel_id(3);
  artifact.set_sequence(17);
  const Clock::TimePoint start = std::chrono::steady_clock::now();
  HandoffSpans(record, artifact).onSpan({channel::HandoffPhase::kCopy, SequenceNumber(17), start, start, 4096});
  internal::v1::CommandTrace trace;
  record.finish(start, trace);
  REQUIRE(trace.spans_size() == 2);
  CHECK(trace.spans(0).kind() == v1::SPAN_KIND_TARGET_COPY);
  CHECK(trace.spans(0).artifact().channel_id() == 3);
  CHECK(trace.spans(0).artifact().sequence() == 17);
  CHECK(trace.spans(0).bytes() == 4096);
  CHECK(!trace.spans(1).has_artifact());
}

TEST_CASE("span_record: without a bound it records nothing", "[worker]") {
  SpanRecord record(0);
  record.add(v1::SPAN_KIND_STAGE, {}, {});
  record.addStep(0, {}, {});
  internal::v1::CommandTrace trace;
  record.finish({}, trace);
  CHECK(!record.enabled());
  CHECK(trace.spans_size() == 0);
  CHECK(trace.dropped() == 0);
}

}  // namespace latentd::worker
