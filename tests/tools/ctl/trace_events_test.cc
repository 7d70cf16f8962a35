#include "tools/ctl/trace_events.h"

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "tests/support/catch.h"

namespace latentd::ctl {
namespace {

constexpr int64_t kStart = 7'000'000'000'000;

void add(v1::TraceTrack& track, v1::SpanKind kind, int64_t start_us, int64_t end_us, uint64_t sequence = 0) {
  v1::TraceSpan& span = *track.add_spans();
  span.set_kind(kind);
  span.set_start_ns(kStart + start_us * 1000);
  span.set_end_ns(kStart + end_us * 1000);
  if (kind < v1::SPAN_KIND_SLOT_WAIT) return;
  span.set_edge("text.encode->denoise.denoise");
  span.set_sequence(sequence);
}

v1::TraceTrack trackOf(const std::string& group, uint32_t rank) {
  v1::TraceTrack track;
  track.set_group(group);
  track.set_rank(rank);
  return track;
}

std::vector<v1::TraceTrack> handOff() {
  v1::TraceTrack text = trackOf("text", 0);
  add(text, v1::SPAN_KIND_DISPATCH, 10, 100);
  add(text, v1::SPAN_KIND_COMMAND, 20, 90);
  add(text, v1::SPAN_KIND_PUBLISH, 60, 80, 4);
  add(text, v1::SPAN_KIND_ACKNOWLEDGED, 120, 120, 4);
  std::vector<v1::TraceTrack> tracks{text};
  for (const uint32_t rank : {0, 1}) {
    v1::TraceTrack denoise = trackOf("denoise", rank);
    add(denoise, v1::SPAN_KIND_COMMAND, 30, 400);
    add(denoise, v1::SPAN_KIND_TARGET_COPY, 85, 95, 4);
    add(denoise, v1::SPAN_KIND_STEP, 100, 200);
    denoise.set_dropped(rank);
    tracks.push_back(denoise);
  }
  v1::TraceTrack daemon = trackOf("", 0);
  add(daemon, v1::SPAN_KIND_QUEUE, 0, 9);
  tracks.push_back(daemon);
  return tracks;
}

}  // namespace

TEST_CASE("latentctl: trace events have what viewers ask of each phase", "[latentctl][trace]") {
  const nlohmann::json trace = nlohmann::json::parse(toTraceEvents("job1", handOff()));
  CHECK(trace["otherData"]["job"] == "job1");
  CHECK(trace["otherData"]["dropped_spans"] == 1);
  std::set<std::pair<int, int>> named;
  for (const nlohmann::json& event : trace["traceEvents"]) {
    if (event["ph"] == "M" && event["name"] == "thread_name") named.emplace(event["pid"], event["tid"]);
  }
  for (const nlohmann::json& event : trace["traceEvents"]) {
    CAPTURE(event.dump());
    const std::string phase = event["ph"];
    REQUIRE(std::set<std::string>{"M", "X", "i", "s", "f"}.count(phase) == 1);
    CHECK(event["name"].is_string());
    CHECK(event["pid"].is_number_integer());
    if (phase == "M") continue;
    CHECK(named.count({event["pid"], event["tid"]}) == 1);
    CHECK(event["ts"].get<double>() >= 0);
    if (phase == "X") CHECK(event["dur"].get<double>() >= 0);
    if (phase == "i") CHECK(event["s"] == "t");
    if (phase == "f") CHECK(event["bp"] == "e");
  }
}

TEST_CASE("latentctl: every rank is a process, and arrows lead from a publication to each copy of it",
          "[latentctl][trace]") {
  const nlohmann::json trace = nlohmann::json::parse(toTraceEvents("job1", handOff()));
  std::map<int, std::string> processes;
  std::map<uint64_t, std::pair<std::string, std::string>> arrows;
  std::map<std::string, nlohmann::json> spans;
  for (const nlohmann::json& event : trace["traceEvents"]) {
    if (event["name"] == "process_name") processes[event["pid"]] = event["args"]["name"];
    if (event["ph"] == "s") arrows[event["id"]].first = processes[event["pid"]];
    if (event["ph"] == "f") arrows[event["id"]].second = processes[event["pid"]];
    if (event["ph"] == "X") spans[processes[event["pid"]] + " " + event["name"].get<std::string>()] = event;
  }
  CHECK(processes.size() == 4);
  CHECK(processes.at(1) == "latentd");
  REQUIRE(arrows.size() == 2);
  CHECK(arrows.at(1) == std::pair<std::string, std::string>("text/0", "denoise/0"));
  CHECK(arrows.at(2) == std::pair<std::string, std::string>("text/0", "denoise/1"));
  CHECK(spans.at("latentd queued")["ts"] == 0);
  CHECK(spans.at("latentd queued")["dur"] == 9);
  CHECK(spans.at("latentd command sent, answer received")["ts"] == 10);
  CHECK(spans.at("text/0 publish")["args"]["sequence"] == 4);
  CHECK(spans.at("text/0 publish")["tid"] != spans.at("text/0 command")["tid"]);
  CHECK(spans.count("denoise/1 step 0") == 1);
}

TEST_CASE("latentctl: a trace without spans is a trace", "[latentctl][trace]") {
  const nlohmann::json trace = nlohmann::json::parse(toTraceEvents("job1", {}));
  CHECK(trace["traceEvents"].is_array());
}

}  // namespace latentd::ctl
