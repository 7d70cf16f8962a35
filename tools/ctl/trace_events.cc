#include "tools/ctl/trace_events.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

namespace latentd::ctl {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kDaemon = 1;  // as a process of the trace; ranks follow
constexpr int kCommands = 1;
constexpr int kDataPlane = 2;

std::string nameOf(const v1::TraceSpan& span) {
  switch (span.kind()) {
    case v1::SPAN_KIND_QUEUE:
      return "queued";
    case v1::SPAN_KIND_DISPATCH:
      return "command sent, answer received";
    case v1::SPAN_KIND_COMMAND:
      return "command";
    case v1::SPAN_KIND_INPUTS:
      return "inputs";
    case v1::SPAN_KIND_STAGE:
      return "stage";
    case v1::SPAN_KIND_STEP:
      return "step " + std::to_string(span.step());
    case v1::SPAN_KIND_OUTPUTS:
      return "outputs";
    case v1::SPAN_KIND_SLOT_WAIT:
      return "wait for a slot";
    case v1::SPAN_KIND_STAGING_COPY:
      return "staging copy";
    case v1::SPAN_KIND_PUBLISH:
      return "publish";
    case v1::SPAN_KIND_INPUT_WAIT:
      return "wait for the artifact";
    case v1::SPAN_KIND_TARGET_COPY:
      return "target copy";
    case v1::SPAN_KIND_ACKNOWLEDGE:
      return "acknowledge";
    case v1::SPAN_KIND_ACKNOWLEDGED:
      return "acknowledged";
    default:
      return "span of a later version";
  }
}

// Builds the events. Owner: toTraceEvents(). Thread: one.
class Events {
 public:
  explicit Events(const std::vector<v1::TraceTrack>& tracks) {
    for (const v1::TraceTrack& track : tracks) {
      for (const v1::TraceSpan& span : track.spans())
        origin_ns_ = std::min(origin_ns_, span.start_ns());
    }
    nameProcess(kDaemon, "latentd");
    nameThread(kDaemon, 0, "queue");
  }

  void add(const v1::TraceTrack& track) {
    const bool daemon = track.group().empty();
    const std::string rank = track.group() + "/" + std::to_string(track.rank());
    const int process = daemon ? kDaemon : ++last_process_;
    if (!daemon) {
      nameProcess(process, rank);
      nameThread(process, kCommands, "commands");
      nameThread(process, kDataPlane, "data plane");
      // The daemon's view of this rank has the number of its process.
      nameThread(kDaemon, process, rank);
    }
    for (const v1::TraceSpan& span : track.spans()) {
      if (span.kind() == v1::SPAN_KIND_QUEUE) {
        addSpan(span, kDaemon, 0);
      } else if (span.kind() == v1::SPAN_KIND_DISPATCH) {
        addSpan(span, kDaemon, process);
      } else {
        addSpan(span, process, span.kind() < v1::SPAN_KIND_SLOT_WAIT ? kCommands : kDataPlane);
      }
    }
  }

  Json finish() {
    for (const auto& [artifact, copies] : copies_) {
      for (const Place& from : publications_[artifact]) {
        for (const Place& to : copies)
          addArrow(from, to);
      }
    }
    return std::move(events_);
  }

 private:
  struct Place {
    int process;
    int thread;
    int64_t start_ns;
    int64_t end_ns;
  };
  using Artifact = std::pair<std::string, uint64_t>;  // edge, sequence

  double microseconds(int64_t time_ns) const { return static_cast<double>(time_ns - origin_ns_) / 1000; }

  void addSpan(const v1::TraceSpan& span, int process, int thread) {
    const bool moment = span.kind() == v1::SPAN_KIND_ACKNOWLEDGED;
    Json event{{"name", nameOf(span)},
               {"cat", span.edge().empty() ? "command" : "handoff"},
               {"ph", moment ? "i" : "X"},
               {"pid", process},
               {"tid", thread},
               {"ts", microseconds(span.start_ns())}};
    if (moment) {
      event["s"] = "t";
    } else {
      event["dur"] = static_cast<double>(span.end_ns() - span.start_ns()) / 1000;
    }
    if (!span.edge().empty()) {
      event["args"] = {{"edge", span.edge()}, {"sequence", span.sequence()}};
      if (span.bytes() > 0) event["args"]["bytes"] = span.bytes();
    }
    events_.push_back(std::move(event));
    const Place place{process, thread, span.start_ns(), span.end_ns()};
    if (span.kind() == v1::SPAN_KIND_PUBLISH) publications_[{span.edge(), span.sequence()}].push_back(place);
    if (span.kind() == v1::SPAN_KIND_TARGET_COPY) copies_[{span.edge(), span.sequence()}].push_back(place);
  }

  void addArrow(const Place& from, const Place& to) {
    ++last_arrow_;
    const auto end = [&](const char* phase, const Place& place, int64_t time_ns) {
      return Json{{"name", "hand-off"},         {"cat", "handoff"},     {"ph", phase},
                  {"id", last_arrow_},          {"pid", place.process}, {"tid", place.thread},
                  {"ts", microseconds(time_ns)}};
    };
    // From the beginning of the publication: viewers tie an arrow to the slice that covers its time, and draw none that
    // leads back, which an arrow from its end may do by some microseconds.
    events_.push_back(end("s", from, from.start_ns));
    events_.push_back(end("f", to, to.start_ns));
    events_.back()["bp"] = "e";
  }

  void nameProcess(int process, const std::string& name) {
    events_.push_back({{"name", "process_name"}, {"ph", "M"}, {"pid", process}, {"args", {{"name", name}}}});
    events_.push_back(
        {{"name", "process_sort_index"}, {"ph", "M"}, {"pid", process}, {"args", {{"sort_index", process}}}});
  }
  void nameThread(int process, int thread, const std::string& name) {
    events_.push_back(
        {{"name", "thread_name"}, {"ph", "M"}, {"pid", process}, {"tid", thread}, {"args", {{"name", name}}}});
  }

  Json events_ = Json::array();
  int64_t origin_ns_ = std::numeric_limits<int64_t>::max();
  int last_process_ = kDaemon;
  uint64_t last_arrow_ = 0;
  std::map<Artifact, std::vector<Place>> publications_;
  std::map<Artifact, std::vector<Place>> copies_;
};

}  // namespace

std::string toTraceEvents(const std::string& job, const std::vector<v1::TraceTrack>& tracks) {
  Events events(tracks);
  uint64_t dropped = 0;
  for (const v1::TraceTrack& track : tracks) {
    events.add(track);
    dropped += track.dropped();
  }
  const Json trace{{"displayTimeUnit", "ms"},
                   {"otherData", {{"job", job}, {"dropped_spans", dropped}}},
                   {"traceEvents", events.finish()}};
  return trace.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace latentd::ctl
