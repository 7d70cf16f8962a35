#include "runtime/supervisor/trace_store.h"

#include <string>

#include "tests/support/catch.h"
#include "tests/support/manual_clock.h"

namespace latentd::supervisor {
namespace {

using std::chrono::milliseconds;
namespace wire = internal::v1;

config::Topology topologyOf(uint32_t spans_max, uint64_t bytes_max) {
  config::Topology topology;
  topology.groups.resize(2);
  topology.groups[0].name = "text";
  topology.groups[1].name = "denoise";
  topology.trace = {spans_max, bytes_max};
  return topology;
}

struct Fixture {
  testing::ManualClock clock;
  config::Topology topology;
  TraceStore store{topology, clock};

  explicit Fixture(uint64_t bytes_max = 1 << 20, uint32_t spans_max = 100)
      : topology(topologyOf(spans_max, bytes_max)) {}

  void answer(const JobId& job, WorkerId worker, int spans = 1) {
    wire::CommandTrace trace;
    for (int i = 0; i < spans; ++i) {
      wire::Span& span = *trace.add_spans();
      span.set_kind(v1::SPAN_KIND_TARGET_COPY);
      span.mutable_artifact()->set_channel_id(9);
      span.mutable_artifact()->set_sequence(4);
    }
    trace.set_dropped(2);
    store.onAnswer(job, worker, trace, [](ChannelId channel) { return "edge " + std::to_string(channel.value); });
  }
};

const WorkerId kText{GroupIndex(0), Rank(0)};
const WorkerId kDenoise{GroupIndex(1), Rank(1)};

}  // namespace

TEST_CASE("trace_store: what was seen here stands beside what ranks told", "[supervisor]") {
  Fixture fixture;
  fixture.store.onSubmitted("a");
  fixture.clock.advance(milliseconds(5));
  fixture.store.onAdmitted("a");
  fixture.store.onCommandSent("a", kDenoise);
  fixture.store.onCommandSent("a", kText);
  fixture.clock.advance(milliseconds(7));
  fixture.answer("a", kDenoise);
  wire::TransferDone done;
  done.set_acknowledged_ns(77);
  done.mutable_artifact()->set_sequence(4);
  fixture.store.onTransfer("a", kText, "edge 9", done);
  const auto tracks = fixture.store.find("a");
  REQUIRE(tracks.ok());
  REQUIRE(tracks->size() == 3);
  const v1::TraceTrack& text = (*tracks)[0];
  CHECK(text.group() == "text");
  REQUIRE(text.spans_size() == 2);
  CHECK(text.spans(0).kind() == v1::SPAN_KIND_ACKNOWLEDGED);
  CHECK(text.spans(0).start_ns() == 77);
  CHECK(text.spans(1).kind() == v1::SPAN_KIND_DISPATCH);  // not answered: until now
  CHECK(text.spans(1).end_ns() - text.spans(1).start_ns() == 7'000'000);
  const v1::TraceTrack& denoise = (*tracks)[1];
  CHECK(denoise.group() == "denoise");
  CHECK(denoise.rank() == 1);
  CHECK(denoise.dropped() == 2);
  REQUIRE(denoise.spans_size() == 2);
  CHECK(denoise.spans(0).kind() == v1::SPAN_KIND_DISPATCH);
  CHECK(denoise.spans(1).edge() == "edge 9");
  CHECK(denoise.spans(1).sequence() == 4);
  const v1::TraceTrack& daemon = (*tracks)[2];
  CHECK(daemon.group().empty());
  REQUIRE(daemon.spans_size() == 1);
  CHECK(daemon.spans(0).kind() == v1::SPAN_KIND_QUEUE);
  CHECK(daemon.spans(0).end_ns() - daemon.spans(0).start_ns() == 5'000'000);
}

TEST_CASE("trace_store: beyond its bytes the oldest jobs' traces go", "[supervisor]") {
  Fixture fixture(20'000);
  for (int job = 0; job < 200; ++job) {
    fixture.store.onSubmitted(std::to_string(job));
    fixture.answer(std::to_string(job), kText, 10);
    CHECK(fixture.store.bytes() <= 20'000);
  }
  CHECK(fixture.store.find("199").ok());
  const Status gone = fixture.store.find("0").status();
  CHECK(gone.code() == absl::StatusCode::kNotFound);
  CHECK(messageOf(gone).find("trace.bytes_max") != std::string::npos);
  // A single job that is larger than all may be does not stay, and what it frees is free.
  fixture.answer("199", kText, 2000);
  CHECK(!fixture.store.find("199").ok());
  CHECK(fixture.store.bytes() == 0);
  fixture.answer("199", kText);  // late news of what is gone
  fixture.store.remove("199");
  CHECK(fixture.store.bytes() == 0);
}

TEST_CASE("trace_store: with spans_max 0 nothing is kept, and the key is named", "[supervisor]") {
  Fixture fixture(1 << 20, 0);
  fixture.store.onSubmitted("a");
  fixture.answer("a", kText);
  CHECK(fixture.store.bytes() == 0);
  const Status refused = fixture.store.find("a").status();
  CHECK(refused.code() == absl::StatusCode::kFailedPrecondition);
  CHECK(messageOf(refused).find("trace.spans_max") != std::string::npos);
}

}  // namespace latentd::supervisor
