#include "tools/ctl/job_lines.h"

#include <fmt/format.h>

#include <algorithm>

#include "tools/ctl/text.h"

namespace latentd::ctl {
namespace {

constexpr size_t kBarCells = 16;  // what follows it fits into 80 columns

std::string bar(uint32_t step, uint32_t steps) {
  const size_t filled = std::min<size_t>(kBarCells, kBarCells * step / std::max<uint32_t>(steps, 1));
  return "[" + std::string(filled, '#') + std::string(kBarCells - filled, '.') + "]";
}

// Since when the awaited stage is awaited: the end of the last stage before it.
double awaitedSince(const v1::Job& job) {
  double since = toSeconds(job.start_time());
  for (const v1::StageProgress& stage : job.stages())
    since = std::max(since, toSeconds(stage.finish_time()));
  return since;
}

}  // namespace

const v1::StageProgress* awaitedStage(const v1::Job& job) {
  if (job.state() != v1::JOB_STATE_RUNNING) return nullptr;
  const v1::StageProgress* awaited = nullptr;
  for (const v1::StageProgress& stage : job.stages()) {
    if (stage.has_finish_time()) continue;
    if (stage.has_compute_start_time()) return nullptr;
    if (awaited == nullptr) awaited = &stage;
  }
  return awaited;
}

std::optional<double> secondsLeft(const v1::Job& job, double since_update) {
  if (job.state() != v1::JOB_STATE_RUNNING || !job.has_remaining()) return std::nullopt;
  return toSeconds(job.remaining()) - since_update;
}

void JobLines::update(const v1::Job& job, double now) {
  if (job.state() != job_.state()) {
    const bool submitted = job_.state() == v1::JOB_STATE_UNSPECIFIED && job.restarts() + job.displacements() == 0;
    state_since_ = submitted && job.state() == v1::JOB_STATE_QUEUED ? toSeconds(job.create_time()) : now;
  }
  if (job.state() == v1::JOB_STATE_QUEUED) paces_.clear();  // it may have run before
  for (const v1::StageProgress& stage : job.stages()) {
    if (!stage.has_compute_start_time()) continue;
    const auto [seen, added] = paces_.try_emplace(stage.stage());
    supervisor::StepPace& pace = seen->second;
    if (added || stage.step() < pace.step()) {
      pace = {};
      pace.join(stage.step(), now);
    } else {
      pace.note(stage.step(), now, toSeconds(stage.compute_start_time()));
    }
  }
  job_ = job;
  updated_ = now;
}

std::string JobLines::runningLine(const v1::StageProgress& stage, double now) const {
  const double elapsed = workSeconds(stage, now);
  if (stage.steps() == 0) return "running for " + formatSeconds(elapsed);
  std::string line = fmt::format("{} {}/{}  {}", bar(stage.step(), stage.steps()), stage.step(), stage.steps(),
                                 formatSeconds(elapsed));
  if (stage.step() >= stage.steps()) return line;
  const supervisor::StepPace& pace = paces_.at(stage.stage());
  const double left = pace.left(stage.steps(), now).value_or(0);
  if (job_.state() == v1::JOB_STATE_RUNNING && left > 0) line += ", " + formatSeconds(left) + " left";
  return line + fmt::format(", step {} for {}", stage.step() + 1, formatSeconds(now - pace.since()));
}

std::string JobLines::stageLine(const v1::StageProgress& stage, double now) const {
  if (!stage.has_finish_time()) return fmt::format("{:<9} {}", stage.stage(), runningLine(stage, now));
  const char* end = wasCutOff(job_, stage) ? "stopped after" : "done in";
  return fmt::format("{:<9} {} {}", stage.stage(), end, formatSeconds(workSeconds(stage, now)));
}

std::vector<std::string> JobLines::at(double now) const {
  std::vector<std::string> lines;
  const std::string in_state = formatSeconds(now - state_since_);
  if (const std::string returned = returnText(job_); !returned.empty()) lines.push_back(returned);
  if (job_.state() == v1::JOB_STATE_QUEUED) {
    lines.push_back(fmt::format("queued    position {}, for {}", job_.queue_position(), in_state));
  }
  for (const v1::StageProgress& stage : job_.stages()) {
    if (stage.has_compute_start_time()) lines.push_back(stageLine(stage, now));
  }
  const v1::StageProgress* awaited = awaitedStage(job_);
  if (awaited != nullptr) {
    const std::string reason = waitText(*awaited);
    lines.push_back("waiting for " + awaited->stage() + " for " + formatSeconds(now - awaitedSince(job_)) +
                    (reason.empty() ? "" : ": " + reason));
  }
  // A wait takes nothing off what is left.
  const std::optional<double> left = secondsLeft(job_, awaited == nullptr ? now - updated_ : 0);
  if (left) lines.push_back("in all    " + formatSeconds(*left) + " left");
  if (job_.state() == v1::JOB_STATE_CANCELLING) {
    lines.push_back("cancelling: the stage stops at its next step; for " + in_state);
  }
  return lines;
}

}  // namespace latentd::ctl
