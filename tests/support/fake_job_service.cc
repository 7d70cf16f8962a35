#include "tests/support/fake_job_service.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "runtime/base/check.h"

namespace latentd::testing {
namespace {

constexpr uint32_t kPageSizeDefault = 50;

bool ended(v1::JobState state) {
  return state == v1::JOB_STATE_SUCCEEDED || state == v1::JOB_STATE_FAILED || state == v1::JOB_STATE_CANCELLED;
}

google::protobuf::Timestamp now() {
  const auto since = std::chrono::system_clock::now().time_since_epoch();
  google::protobuf::Timestamp time;
  time.set_seconds(std::chrono::duration_cast<std::chrono::seconds>(since).count());
  time.set_nanos(static_cast<int32_t>(std::chrono::nanoseconds(since).count() % 1'000'000'000));
  return time;
}

void fillDefaults(v1::JobParameters& parameters) {
  if (!parameters.has_negative_prompt()) parameters.set_negative_prompt("");
  if (!parameters.has_frames()) parameters.set_frames(17);
  if (!parameters.has_width()) parameters.set_width(128);
  if (!parameters.has_height()) parameters.set_height(128);
  if (!parameters.has_steps()) parameters.set_steps(16);
  if (!parameters.has_guidance_scale()) parameters.set_guidance_scale(2.5);
  if (!parameters.has_seed()) parameters.set_seed(42);
  if (!parameters.has_fps()) parameters.set_fps(8);
  if (!parameters.has_flow_shift()) parameters.set_flow_shift(3);
  if (parameters.format() == v1::OUTPUT_FORMAT_UNSPECIFIED) parameters.set_format(v1::OUTPUT_FORMAT_MP4);
}

v1::StageProgress& stageOf(v1::Job& job, const std::string& stage) {
  for (v1::StageProgress& known : *job.mutable_stages()) {
    if (known.stage() == stage) return known;
  }
  for (v1::StageProgress& before : *job.mutable_stages()) {
    if (!before.has_finish_time()) *before.mutable_finish_time() = now();
  }
  v1::StageProgress& added = *job.add_stages();
  added.set_stage(stage);
  *added.mutable_start_time() = now();
  *added.mutable_compute_start_time() = added.start_time();
  return added;
}

bool matches(const v1::Job& job, const v1::ListJobsRequest& request) {
  const auto seconds = [](const google::protobuf::Timestamp& time) { return time.seconds() + time.nanos() * 1e-9; };
  const auto& states = request.states();
  if (!states.empty() && std::find(states.begin(), states.end(), job.state()) == states.end()) return false;
  if (request.has_created_after() && seconds(job.create_time()) <= seconds(request.created_after())) return false;
  return !request.has_created_before() || seconds(job.create_time()) < seconds(request.created_before());
}

}  // namespace

class FakeJobService::FakeWatch final : public Watch {
 public:
  FakeWatch(FakeJobService& owner, uint64_t number) : owner_(owner), number_(number) {}
  ~FakeWatch() override {
    MutexLock held(owner_.mutex_);
    owner_.watches_.erase(number_);
    owner_.watches_changed_.notifyAll();
  }

 private:
  FakeJobService& owner_;
  const uint64_t number_;
};

StatusOr<FakeJobService::Entry*> FakeJobService::find(const JobId& id) {
  for (Entry& entry : entries_) {
    if (entry.job.id() == id) return &entry;
  }
  return absl::NotFoundError("id: there is no job " + id);
}

void FakeJobService::notify(const Entry& entry) {
  for (const auto& [number, watch] : watches_) {
    if (watch.first == entry.job.id()) watch.second(entry.job);
  }
}

void FakeJobService::renumberQueue() {
  uint32_t position = 0;
  for (Entry& entry : entries_) {
    const uint32_t wanted = entry.job.state() == v1::JOB_STATE_QUEUED ? ++position : 0;
    if (entry.job.queue_position() == wanted) continue;
    entry.job.set_queue_position(wanted);
    if (wanted != 0) notify(entry);
  }
}

Status FakeJobService::admit(const v1::SubmitRequest& request) {
  if (draining_) return absl::UnavailableError("the daemon drains and takes no more jobs");
  const std::string& prompt = request.parameters().prompt();
  if (prompt.empty()) return absl::InvalidArgumentError("prompt: is empty; give a text, such as \"a red circle\"");
  if (prompt.size() > options_.prompt_bytes_max) {
    return absl::InvalidArgumentError("prompt: has " + std::to_string(prompt.size()) + " bytes; give at most " +
                                      std::to_string(options_.prompt_bytes_max));
  }
  const auto queued = std::count_if(entries_.begin(), entries_.end(),
                                    [](const Entry& entry) { return entry.job.state() == v1::JOB_STATE_QUEUED; });
  if (static_cast<size_t>(queued) >= options_.queue_max) {
    return absl::ResourceExhaustedError("the queue is full (" + std::to_string(queued) + " jobs); try again later");
  }
  return absl::OkStatus();
}

StatusOr<v1::Job> FakeJobService::submit(const v1::SubmitRequest& request) {
  MutexLock held(mutex_);
  for (const Entry& known : entries_) {
    if (!request.request_id().empty() && known.request_id == request.request_id()) return known.job;
  }
  LATENTD_RETURN_IF_ERROR(admit(request));
  Entry& entry = entries_.emplace_back();
  entry.request_id = request.request_id();
  entry.job.set_id("job" + std::to_string(next_job_++));
  entry.job.set_state(v1::JOB_STATE_QUEUED);
  entry.job.set_priority(request.priority());
  *entry.job.mutable_parameters() = request.parameters();
  fillDefaults(*entry.job.mutable_parameters());
  *entry.job.mutable_create_time() = now();
  renumberQueue();
  return entry.job;
}

StatusOr<v1::Job> FakeJobService::get(const JobId& id) {
  MutexLock held(mutex_);
  LATENTD_ASSIGN_OR_RETURN(Entry * entry, find(id));
  return entry->job;
}

StatusOr<v1::ListJobsResponse> FakeJobService::list(const v1::ListJobsRequest& request) {
  MutexLock held(mutex_);
  v1::ListJobsResponse page;
  const uint32_t page_size = request.page_size() == 0 ? kPageSizeDefault : request.page_size();
  bool started = request.page_token().empty();
  for (auto entry = entries_.rbegin(); entry != entries_.rend(); ++entry) {
    if (started && matches(entry->job, request)) {
      if (static_cast<uint32_t>(page.jobs_size()) == page_size) {
        page.set_next_page_token(page.jobs(page.jobs_size() - 1).id());
        return page;
      }
      *page.add_jobs() = entry->job;
    }
    started = started || entry->job.id() == request.page_token();
  }
  if (!started) return absl::InvalidArgumentError("page_token: is not of this list; start again without one");
  return page;
}

StatusOr<v1::Job> FakeJobService::cancel(const JobId& id) {
  MutexLock held(mutex_);
  LATENTD_ASSIGN_OR_RETURN(Entry * entry, find(id));
  switch (entry->job.state()) {
    case v1::JOB_STATE_QUEUED:
      entry->job.set_state(v1::JOB_STATE_CANCELLED);
      *entry->job.mutable_finish_time() = now();
      break;
    case v1::JOB_STATE_RUNNING:
      entry->job.set_state(v1::JOB_STATE_CANCELLING);
      break;
    case v1::JOB_STATE_CANCELLING:
    case v1::JOB_STATE_CANCELLED:
      return entry->job;
    default:
      return absl::FailedPreconditionError("job " + id + " has already ended");
  }
  renumberQueue();
  notify(*entry);
  return entry->job;
}

StatusOr<std::unique_ptr<supervisor::JobService::Watch>> FakeJobService::watch(const JobId& id,
                                                                               WatchCallback callback) {
  MutexLock held(mutex_);
  LATENTD_ASSIGN_OR_RETURN(const Entry* entry, find(id));
  callback(entry->job);
  const uint64_t number = next_watch_++;
  watches_.emplace(number, std::make_pair(id, std::move(callback)));
  watches_changed_.notifyAll();
  return std::unique_ptr<Watch>(std::make_unique<FakeWatch>(*this, number));
}

StatusOr<supervisor::ResultFile> FakeJobService::openResult(const JobId& id) {
  MutexLock held(mutex_);
  LATENTD_ASSIGN_OR_RETURN(const Entry* entry, find(id));
  if (entry->job.state() != v1::JOB_STATE_SUCCEEDED) {
    return absl::FailedPreconditionError("job " + id + " has no result: it is " +
                                         v1::JobState_Name(entry->job.state()));
  }
  supervisor::ResultFile file;
  file.fd.reset(memfd_create("result", MFD_CLOEXEC));
  LATENTD_CHECK(file.fd.valid(), "memfd_create");
  size_t written = 0;
  while (written < entry->result.size()) {
    const ssize_t got = pwrite(file.fd.get(), entry->result.data() + written, entry->result.size() - written,
                               static_cast<off_t>(written));
    LATENTD_CHECK(got > 0, "pwrite into a memfd");
    written += static_cast<size_t>(got);
  }
  file.bytes = entry->result_bytes_claimed;
  file.format = entry->job.parameters().format();
  return file;
}

Status FakeJobService::remove(const JobId& id) {
  MutexLock held(mutex_);
  LATENTD_ASSIGN_OR_RETURN(const Entry* entry, find(id));
  if (!ended(entry->job.state())) {
    return absl::FailedPreconditionError("job " + id + " still runs; cancel it first");
  }
  std::erase_if(entries_, [&](const Entry& known) { return known.job.id() == id; });
  return absl::OkStatus();
}

StatusOr<std::vector<v1::TraceTrack>> FakeJobService::trace(const JobId& id) {
  MutexLock held(mutex_);
  LATENTD_RETURN_IF_ERROR(find(id).status());
  const auto track = [](const std::string& group, uint32_t rank, const std::vector<v1::SpanKind>& kinds) {
    v1::TraceTrack made;
    made.set_group(group);
    made.set_rank(rank);
    int64_t start = 5'000'000'000 + static_cast<int64_t>(rank) * 1000;
    for (const v1::SpanKind kind : kinds) {
      v1::TraceSpan& span = *made.add_spans();
      span.set_kind(kind);
      span.set_start_ns(start);
      span.set_end_ns(start += 1500);
      const bool handoff = kind >= v1::SPAN_KIND_SLOT_WAIT;
      if (handoff) span.set_edge("text.encode->denoise.denoise");
      if (handoff) span.set_bytes(4096);
    }
    return made;
  };
  std::vector<v1::TraceTrack> tracks{
      track("text", 0, {v1::SPAN_KIND_DISPATCH, v1::SPAN_KIND_COMMAND, v1::SPAN_KIND_PUBLISH})};
  for (const uint32_t rank : {0, 1})
    tracks.push_back(
        track("denoise", rank, {v1::SPAN_KIND_COMMAND, v1::SPAN_KIND_INPUT_WAIT, v1::SPAN_KIND_TARGET_COPY}));
  tracks.back().set_dropped(3);
  tracks.push_back(track("", 0, {v1::SPAN_KIND_QUEUE}));
  return tracks;
}

v1::Topology FakeJobService::topology() {
  v1::Topology topology;
  uint32_t pid = 1000;
  for (const char* name : {"text", "denoise", "decode"}) {
    v1::Group& group = *topology.add_groups();
    group.set_name(name);
    group.set_stage(std::string("fake.") + name);
    group.set_epoch(1);
    group.set_threads(1);
    v1::Worker& worker = *group.add_workers();
    worker.set_pid(static_cast<int32_t>(pid++));
    worker.set_device("cpu");
    worker.set_state(v1::WORKER_STATE_READY);
    worker.set_memory_bytes(300 << 20);
    if (group.name() != "denoise") continue;
    v1::Worker& second = *group.add_workers();
    second = worker;
    second.set_rank(1);
    second.set_pid(0);
    second.set_state(v1::WORKER_STATE_FAILED);
    for (v1::Worker& each : *group.mutable_workers()) {
      v1::MeshCoordinate& coordinate = *each.add_place();
      coordinate.set_dimension("ulysses");
      coordinate.set_index(each.rank());
    }
    group.mutable_degrees()->set_cfg(1);
    group.mutable_degrees()->set_ulysses(2);
    group.set_communication("gloo");
    group.set_communication_reason("its ranks are on the CPU");
    group.set_ulysses_transport("shm");
    group.set_ulysses_transport_reason("the topology says so");
  }
  *topology.mutable_edges() = edges().edges();
  topology.mutable_limits()->set_frame_step(4);
  topology.mutable_limits()->set_size_multiple(16);
  topology.mutable_limits()->set_guidance_max(20);
  topology.mutable_limits()->set_fps_max(120);
  topology.mutable_limits()->set_flow_shift_min(0.5);
  topology.mutable_limits()->set_flow_shift_max(50);
  return topology;
}

v1::GetEdgesResponse FakeJobService::edges() {
  v1::GetEdgesResponse response;
  for (const char* name : {"text.encode->denoise.denoise", "denoise.denoise->decode.decode"}) {
    v1::Edge& edge = *response.add_edges();
    edge.set_name(name);
    edge.set_transport("shm");
    edge.set_transport_reason("both on the CPU");
    edge.set_slots(2);
    edge.set_handoffs(7);
    edge.set_bytes(1 << 20);
    edge.add_producers()->set_handoffs(7);
    edge.mutable_producers(0)->set_bytes(1 << 20);
    edge.add_consumers()->set_bytes(1 << 20);
  }
  // Of the second edge each rank of denoise publishes its part.
  v1::Edge& edge = *response.mutable_edges(1);
  v1::EdgeRank& second = *edge.add_producers();
  second.set_rank(1);
  second.set_handoffs(6);
  second.set_bytes(1 << 19);
  second.set_slots_in_use(1);
  return response;
}

StatusOr<v1::FlightRecords> FakeJobService::flightRecords(const std::string& group) {
  if (!group.empty() && group != "denoise") return absl::NotFoundError("there is no group \"" + group + "\"");
  v1::FlightRecords records;
  records.set_now_ns(9'000'000'000);
  v1::GroupRecord& record = *records.add_groups();
  record.set_group("denoise");
  record.set_epoch(3);
  record.set_verdict("rank 1 waits in all_to_all 2 of ulysses for 4.00 s, which rank 0 has not begun");
  for (const uint32_t rank : {0, 1}) {
    v1::RankRecord& ranks = *record.add_ranks();
    ranks.set_rank(rank);
    ranks.set_operations(40 + rank);
    ranks.set_bytes_sent(4096 * (1 + rank));
    for (uint32_t sequence = 1; sequence <= 1 + rank; ++sequence) {
      v1::MeshOperation& operation = *ranks.add_recent();
      operation.set_sequence(sequence);
      operation.set_run(sequence == 1 ? 0 : 6);
      operation.set_kind("all_to_all");
      operation.set_process_group("ulysses");
      operation.set_dtype(v1::DTYPE_BFLOAT16);
      operation.add_shape(2);
      operation.add_shape(320);
      operation.set_bytes_sent(4096);
      operation.set_submitted_ns(sequence == 1 ? 4'000'000'000 : 5'000'000'000);
      operation.set_done_ns(sequence == 1 ? 4'002'000'000 : 0);
    }
  }
  v1::GroupRecord& failed = *records.add_groups();
  failed = record;
  failed.set_epoch(2);
  failed.set_ended(true);
  failed.set_ended_ns(7'000'000'000);
  failed.mutable_end_time()->set_seconds(1'767'225'600);
  failed.mutable_cause()->set_code(14);
  failed.mutable_cause()->set_message("denoise rank 0 (fake.denoise): died");
  return records;
}

uint32_t FakeJobService::drain(std::chrono::milliseconds deadline) {
  MutexLock held(mutex_);
  draining_ = true;
  drain_deadline_ = deadline;
  return static_cast<uint32_t>(
      std::count_if(entries_.begin(), entries_.end(), [](const Entry& entry) { return !ended(entry.job.state()); }));
}

Status FakeJobService::ready() {
  MutexLock held(mutex_);
  return draining_ ? absl::UnavailableError("draining") : ready_;
}

void FakeJobService::change(const JobId& id, const std::function<void(Entry&)>& edit) {
  MutexLock held(mutex_);
  StatusOr<Entry*> entry = find(id);
  if (!entry.ok() || ended((*entry)->job.state())) return;
  edit(**entry);
  if (ended((*entry)->job.state())) *(*entry)->job.mutable_finish_time() = now();
  renumberQueue();
  notify(**entry);
}

void FakeJobService::progress(const JobId& id, const std::string& stage, uint32_t step, uint32_t steps) {
  change(id, [&](Entry& entry) {
    if (entry.job.state() == v1::JOB_STATE_QUEUED) {
      entry.job.set_state(v1::JOB_STATE_RUNNING);
      *entry.job.mutable_start_time() = now();
    }
    v1::StageProgress& progress = stageOf(entry.job, stage);
    progress.set_step(step);
    progress.set_steps(steps);
    entry.job.mutable_remaining()->set_seconds(steps - std::min(step, steps));
  });
}

void FakeJobService::succeed(const JobId& id, std::string result, size_t bytes_left) {
  change(id, [&](Entry& entry) {
    entry.job.set_state(v1::JOB_STATE_SUCCEEDED);
    for (v1::StageProgress& stage : *entry.job.mutable_stages()) {
      if (!stage.has_finish_time()) *stage.mutable_finish_time() = now();
    }
    entry.job.clear_remaining();
    entry.job.set_result_bytes(result.size());
    entry.job.set_result_available(true);
    entry.result_bytes_claimed = result.size();
    result.resize(std::min(result.size(), bytes_left));
    entry.result = std::move(result);
  });
}

void FakeJobService::fail(const JobId& id, const Status& error) {
  change(id, [&](Entry& entry) {
    entry.job.set_state(v1::JOB_STATE_FAILED);
    entry.job.mutable_error()->set_code(static_cast<int32_t>(error.code()));
    entry.job.mutable_error()->set_message(messageOf(error));
  });
}

void FakeJobService::finishCancel(const JobId& id) {
  change(id, [](Entry& entry) {
    entry.job.set_state(v1::JOB_STATE_CANCELLED);
    entry.job.mutable_error()->set_code(static_cast<int32_t>(absl::StatusCode::kCancelled));
    entry.job.mutable_error()->set_message("cancelled by the client");
  });
}

void FakeJobService::setReady(Status status) {
  MutexLock held(mutex_);
  ready_ = std::move(status);
}

bool FakeJobService::watched(const JobId& id) {
  MutexLock held(mutex_);
  return std::any_of(watches_.begin(), watches_.end(), [&](const auto& watch) { return watch.second.first == id; });
}

std::vector<v1::Job> FakeJobService::jobs() {
  MutexLock held(mutex_);
  std::vector<v1::Job> all;
  for (const Entry& entry : entries_)
    all.push_back(entry.job);
  return all;
}

size_t FakeJobService::openWatches() {
  MutexLock held(mutex_);
  return watches_.size();
}

bool FakeJobService::waitForWatches(size_t count, std::chrono::milliseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  MutexLock held(mutex_);
  while (watches_.size() != count) {
    if (!watches_changed_.waitUntil(mutex_, deadline)) return watches_.size() == count;
  }
  return true;
}

std::chrono::milliseconds FakeJobService::drainDeadline() {
  MutexLock held(mutex_);
  return drain_deadline_;
}

}  // namespace latentd::testing
