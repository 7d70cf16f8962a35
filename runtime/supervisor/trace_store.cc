#include "runtime/supervisor/trace_store.h"

#include <fmt/format.h>

#include <utility>

#include "runtime/base/nanoseconds.h"

namespace latentd::supervisor {

namespace wire = internal::v1;

namespace {

// A job without any span, with its places in the tables.
constexpr uint64_t kTraceBytes = 512;
// A span with the name of its edge.
constexpr uint64_t kSpanBytes = 192;

void addSpan(v1::SpanKind kind, Clock::TimePoint start, Clock::TimePoint end, v1::TraceTrack& track) {
  v1::TraceSpan& span = *track.add_spans();
  span.set_kind(kind);
  span.set_start_ns(toNanoseconds(start));
  span.set_end_ns(toNanoseconds(end));
}

}  // namespace

TraceStore::Trace* TraceStore::lookUp(const JobId& job) {
  const auto found = traces_.find(job);
  return found == traces_.end() ? nullptr : &found->second;
}

TraceStore::Track& TraceStore::trackOf(Trace& trace, WorkerId worker) {
  Track& track = trace.tracks[worker];
  track.told.set_group(topology_.groups[worker.group.value].name);
  track.told.set_rank(worker.rank.value);
  return track;
}

// May remove the trace itself, which is why nobody touches it afterwards.
void TraceStore::grow(Trace& trace, uint64_t bytes) {
  trace.bytes += bytes;
  bytes_ += bytes;
  while (bytes_ > topology_.trace.bytes_max)
    remove(JobId(by_order_.begin()->second));
}

void TraceStore::onSubmitted(const JobId& job) {
  if (!enabled()) return;
  Trace& trace = traces_[job];
  trace.order = next_order_++;
  trace.submitted = clock_.now();
  by_order_.emplace(trace.order, job);
  grow(trace, kTraceBytes);
}

void TraceStore::onAdmitted(const JobId& job) {
  if (Trace* trace = lookUp(job)) trace->admitted = clock_.now();
}

void TraceStore::onCommandSent(const JobId& job, WorkerId worker) {
  if (Trace* trace = lookUp(job)) trackOf(*trace, worker).sent = clock_.now();
}

void TraceStore::onAnswer(const JobId& job, WorkerId worker, const wire::CommandTrace& told, const NameOfEdge& edge) {
  Trace* trace = lookUp(job);
  if (trace == nullptr) return;
  Track& track = trackOf(*trace, worker);
  v1::TraceTrack grown;
  if (track.sent) addSpan(v1::SPAN_KIND_DISPATCH, *track.sent, clock_.now(), grown);
  track.sent.reset();
  for (const wire::Span& span : told.spans()) {
    v1::TraceSpan& added = *grown.add_spans();
    added.set_kind(span.kind());
    added.set_start_ns(span.start_ns());
    added.set_end_ns(span.end_ns());
    added.set_step(span.step());
    added.set_bytes(span.bytes());
    if (!span.has_artifact()) continue;
    added.set_edge(edge(ChannelId(span.artifact().channel_id())));
    added.set_sequence(span.artifact().sequence());
  }
  track.told.set_dropped(track.told.dropped() + told.dropped());
  track.told.MergeFrom(grown);
  grow(*trace, kSpanBytes * static_cast<uint64_t>(grown.spans_size()));
}

void TraceStore::onTransfer(const JobId& job, WorkerId worker, const std::string& edge,
                            const wire::TransferDone& done) {
  Trace* trace = lookUp(job);
  if (trace == nullptr) return;
  v1::TraceSpan& span = *trackOf(*trace, worker).told.add_spans();
  span.set_kind(v1::SPAN_KIND_ACKNOWLEDGED);
  span.set_start_ns(done.acknowledged_ns());
  span.set_end_ns(done.acknowledged_ns());
  span.set_edge(edge);
  span.set_sequence(done.artifact().sequence());
  span.set_bytes(done.bytes());
  grow(*trace, kSpanBytes);
}

void TraceStore::remove(const JobId& job) {
  const auto found = traces_.find(job);
  if (found == traces_.end()) return;
  bytes_ -= found->second.bytes;
  by_order_.erase(found->second.order);
  traces_.erase(found);
}

StatusOr<std::vector<v1::TraceTrack>> TraceStore::find(const JobId& job) const {
  if (!enabled()) {
    return absl::FailedPreconditionError(
        "no traces are kept: trace.spans_max is 0 in the topology; raise it and start the daemon again");
  }
  const auto found = traces_.find(job);
  if (found == traces_.end()) {
    return absl::NotFoundError(
        fmt::format("the trace of job {} gave way to those of later jobs (trace.bytes_max)", job));
  }
  const Trace& trace = found->second;
  const Clock::TimePoint now = clock_.now();
  std::vector<v1::TraceTrack> tracks;
  for (const auto& [worker, track] : trace.tracks) {
    tracks.push_back(track.told);
    if (track.sent) addSpan(v1::SPAN_KIND_DISPATCH, *track.sent, now, tracks.back());
  }
  addSpan(v1::SPAN_KIND_QUEUE, trace.submitted, trace.admitted.value_or(now), tracks.emplace_back());
  return tracks;
}

}  // namespace latentd::supervisor
