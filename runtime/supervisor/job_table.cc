#include "runtime/supervisor/job_table.h"

#include <fmt/format.h>
#include <google/protobuf/util/time_util.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/state_machine.h"
#include "runtime/supervisor/invalid_field.h"
#include "runtime/supervisor/limits.h"
#include "runtime/supervisor/state_name.h"
#include "runtime/supervisor/status_proto.h"
#include "runtime/supervisor/timestamps.h"

namespace latentd::supervisor {
namespace {

constexpr TransitionTable<v1::JobState, 8> kTransitions{{
    {v1::JOB_STATE_QUEUED, v1::JOB_STATE_RUNNING, "the pipeline admits it"},
    {v1::JOB_STATE_QUEUED, v1::JOB_STATE_CANCELLED, "cancelled before it held anything"},
    {v1::JOB_STATE_QUEUED, v1::JOB_STATE_FAILED, "its deadline passed"},
    {v1::JOB_STATE_RUNNING, v1::JOB_STATE_SUCCEEDED, "the result is complete"},
    {v1::JOB_STATE_RUNNING, v1::JOB_STATE_FAILED, "the first failure of any part"},
    {v1::JOB_STATE_RUNNING, v1::JOB_STATE_CANCELLING, "on demand"},
    {v1::JOB_STATE_RUNNING, v1::JOB_STATE_QUEUED, "a group was lost, and it may be run once more"},
    {v1::JOB_STATE_CANCELLING, v1::JOB_STATE_CANCELLED, "no worker holds anything of it"},
}};
static_assert(isWellFormed(kTransitions));

StatusOr<uint64_t> parseToken(const std::string& token) {
  uint64_t order = 0;
  const char* end = token.data() + token.size();
  const auto [stopped, error] = std::from_chars(token.data(), end, order);
  if (error != std::errc() || stopped != end) {
    return invalidField("page_token", " = \"{}\": must be the next_page_token of a previous page, or empty", token);
  }
  return order;
}

bool matches(const v1::ListJobsRequest& request, const v1::Job& job) {
  const auto& states = request.states();
  if (!states.empty() && std::find(states.begin(), states.end(), job.state()) == states.end()) return false;
  if (request.has_created_after() && job.create_time() <= request.created_after()) return false;
  return !request.has_created_before() || job.create_time() < request.created_before();
}

Status checkTime(std::string_view field, const google::protobuf::Timestamp& time) {
  using google::protobuf::util::TimeUtil;
  const bool valid = time.seconds() >= TimeUtil::kTimestampMinSeconds &&
                     time.seconds() <= TimeUtil::kTimestampMaxSeconds && time.nanos() >= 0 &&
                     time.nanos() < 1'000'000'000;
  if (valid) return absl::OkStatus();
  return invalidField(field, " = {} s and {} ns: is no time; the years 1 to 9999, nanos from 0 to 999999999",
                      time.seconds(), time.nanos());
}

Status checkList(const v1::ListJobsRequest& request) {
  if (request.page_size() > kPageSizeMax) {
    return invalidField("page_size", " = {}: must be at most {}; 0 means {}", request.page_size(), kPageSizeMax,
                        kPageSizeDefault);
  }
  for (const int state : request.states()) {
    if (v1::JobState_IsValid(state) && state != v1::JOB_STATE_UNSPECIFIED) continue;
    return invalidField("states", " = {}: must be of {} to {}; none means all", state,
                        static_cast<int>(v1::JOB_STATE_QUEUED), static_cast<int>(v1::JobState_MAX));
  }
  LATENTD_RETURN_IF_ERROR(checkTime("created_after", request.created_after()));
  LATENTD_RETURN_IF_ERROR(checkTime("created_before", request.created_before()));
  using google::protobuf::util::TimeUtil;
  const bool both = request.has_created_after() && request.has_created_before();
  if (both && request.created_before() < request.created_after()) {
    return invalidField("created_after", " = {}: must not be later than created_before, {}",
                        TimeUtil::ToString(request.created_after()), TimeUtil::ToString(request.created_before()));
  }
  return absl::OkStatus();
}

}  // namespace

bool canFollow(v1::JobState from, v1::JobState to) { return allows(kTransitions, from, to); }

bool isTerminal(v1::JobState state) {
  return state == v1::JOB_STATE_SUCCEEDED || state == v1::JOB_STATE_FAILED || state == v1::JOB_STATE_CANCELLED;
}

JobTable::JobTable(const Clock& clock, Retention retention, std::vector<std::string> stages)
    : clock_(clock), retention_(retention), stages_(std::move(stages)) {}

JobRecord& JobTable::create(const JobId& id, v1::JobParameters parameters, int32_t priority, std::string request_id) {
  auto record = std::make_unique<JobRecord>();
  record->order = next_order_++;
  record->request_id = std::move(request_id);
  record->created = clock_.now();
  v1::Job& job = record->job;
  job.set_id(id);
  job.set_state(v1::JOB_STATE_QUEUED);
  *job.mutable_parameters() = std::move(parameters);
  job.set_priority(priority);
  *job.mutable_create_time() = toTimestamp(clock_.wallNow());
  for (const std::string& stage : stages_)
    job.add_stages()->set_stage(stage);

  JobRecord& kept = *record;
  LATENTD_CHECK(by_id_.emplace(id, std::move(record)).second, "job ids are unique");
  by_order_.emplace(kept.order, &kept);
  if (!kept.request_id.empty()) {
    LATENTD_CHECK(by_request_.emplace(kept.request_id, &kept).second, "a request id makes one job");
  }
  return kept;
}

JobRecord* JobTable::find(const JobId& id) {
  const auto found = by_id_.find(id);
  return found == by_id_.end() ? nullptr : found->second.get();
}

JobRecord* JobTable::findByRequest(const std::string& request_id) {
  const auto found = by_request_.find(request_id);
  return found == by_request_.end() ? nullptr : found->second;
}

void JobTable::transition(JobRecord& record, v1::JobState to) {
  LATENTD_CHECK(canFollow(record.job.state(), to),
                fmt::format("job {}: {} to {}", record.job.id(), stateName(record.job.state()), stateName(to)));
  record.job.set_state(to);
  if (to == v1::JOB_STATE_RUNNING) {
    record.started = clock_.now();
    *record.job.mutable_start_time() = toTimestamp(clock_.wallNow());
  }
  if (!isTerminal(to)) return;
  record.finished = clock_.now();
  *record.job.mutable_finish_time() = toTimestamp(clock_.wallNow());
  record.job.clear_remaining();
  // What was cut off ends with its job; its command's own end may come later, or never.
  for (v1::StageProgress& stage : *record.job.mutable_stages()) {
    if (stage.has_start_time() && !stage.has_finish_time()) *stage.mutable_finish_time() = record.job.finish_time();
  }
  record.finish_order = next_finish_order_++;
  finished_.emplace(record.finish_order, &record);
}

void JobTable::requeue(JobRecord& record, const Status& cause, Requeue why) {
  transition(record, v1::JOB_STATE_QUEUED);
  ++record.runs;
  v1::Job& job = record.job;
  if (why == Requeue::kLost) {
    job.set_restarts(job.restarts() + 1);
  } else {
    job.set_displacements(job.displacements() + 1);
  }
  *job.mutable_restart_cause() = toProto(cause);
  job.clear_start_time();
  job.clear_transfers();
  job.clear_stages();
  for (const std::string& stage : stages_)
    job.add_stages()->set_stage(stage);
}

Status JobTable::remove(const JobId& id) {
  JobRecord* record = find(id);
  if (record == nullptr) return absl::NotFoundError(fmt::format("there is no job \"{}\"", id));
  if (!isTerminal(record->job.state())) {
    return absl::FailedPreconditionError(
        fmt::format("job {} has not ended, it is {}: cancel it first", id, stateName(record->job.state())));
  }
  erase(*record);
  return absl::OkStatus();
}

std::vector<JobId> JobTable::expire() {
  std::vector<JobId> forgotten;
  while (!finished_.empty()) {
    JobRecord& oldest = *finished_.begin()->second;
    const bool too_many = finished_.size() > retention_.finished_max;
    if (!too_many && clock_.now() - oldest.finished < retention_.age_max) break;
    forgotten.push_back(oldest.job.id());
    erase(oldest);
  }
  return forgotten;
}

Clock::TimePoint JobTable::nextExpiry() const {
  if (finished_.empty()) return Clock::TimePoint::max();
  if (finished_.size() > retention_.finished_max) return clock_.now();
  return finished_.begin()->second->finished + retention_.age_max;
}

StatusOr<v1::ListJobsResponse> JobTable::list(const v1::ListJobsRequest& request, const Decorate& decorate) const {
  LATENTD_RETURN_IF_ERROR(checkList(request));
  const size_t page_size = request.page_size() == 0 ? kPageSizeDefault : request.page_size();
  auto position = by_order_.rbegin();
  if (!request.page_token().empty()) {
    LATENTD_ASSIGN_OR_RETURN(const uint64_t last_order, parseToken(request.page_token()));
    position = std::make_reverse_iterator(by_order_.lower_bound(last_order));
  }
  v1::ListJobsResponse response;
  uint64_t last_order = 0;
  for (; position != by_order_.rend(); ++position) {
    const JobRecord& record = *position->second;
    if (!matches(request, record.job)) continue;
    if (static_cast<size_t>(response.jobs_size()) == page_size) {
      response.set_next_page_token(std::to_string(last_order));
      break;
    }
    v1::Job& job = *response.add_jobs();
    job = record.job;
    decorate(record, job);
    last_order = record.order;
  }
  return response;
}

std::vector<JobId> JobTable::unfinishedJobs() const {
  std::vector<JobId> ids;
  for (const auto& [order, record] : by_order_) {
    if (!isTerminal(record->job.state())) ids.push_back(record->job.id());
  }
  return ids;
}

void JobTable::erase(JobRecord& record) {
  finished_.erase(record.finish_order);
  if (!record.request_id.empty()) by_request_.erase(record.request_id);
  by_order_.erase(record.order);
  by_id_.erase(JobId(record.job.id()));
}

}  // namespace latentd::supervisor
