#include "tools/ctl/job_text.h"

#include <fmt/format.h>

#include <chrono>

#include "tools/ctl/format.h"
#include "tools/ctl/job_lines.h"
#include "tools/ctl/text.h"

namespace latentd::ctl {
namespace {

constexpr size_t kPromptColumns = 40;  // keeps a row of a list within 120 columns

constexpr const char* kStageLegend =
    "INPUT WAIT: until its inputs were there and copied; a stage gets its command before they exist, so that this\n"
    "overlaps the stages before. COMPUTE: in its method, PUBLISH: until its outputs lay in their slots, TOTAL: all of "
    "it.\n";
constexpr const char* kHandoffLegend =
    "FROM RANK: of the producer; where several publish, each has a part. TIME: from its publication until all its\n"
    "consumers had it, their work on another job before included.\n";

std::string durationOf(const v1::Job& job) {
  if (!job.has_start_time()) return "-";
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const double end = job.has_finish_time() ? toSeconds(job.finish_time()) : std::chrono::duration<double>(now).count();
  return formatSeconds(end - toSeconds(job.start_time()));
}

void addParameters(const v1::JobParameters& parameters, std::vector<std::vector<std::string>>& rows) {
  rows.push_back({"prompt", parameters.prompt()});
  rows.push_back({"negative prompt", parameters.negative_prompt().empty() ? "-" : parameters.negative_prompt()});
  rows.push_back({"frames", std::to_string(parameters.frames())});
  rows.push_back({"size", fmt::format("{}x{}", parameters.width(), parameters.height())});
  rows.push_back({"steps", std::to_string(parameters.steps())});
  rows.push_back({"guidance", formatNumber(parameters.guidance_scale())});
  rows.push_back({"seed", std::to_string(parameters.seed())});
  rows.push_back({"fps", formatNumber(parameters.fps())});
  rows.push_back({"flow shift", parameters.has_flow_shift() ? formatNumber(parameters.flow_shift()) : "-"});
  rows.push_back({"format", formatName(parameters.format()) + (parameters.float_pixels() ? ", float32" : "")});
}

std::string stageState(const v1::Job& job, const v1::StageProgress& stage) {
  if (stage.has_finish_time()) return wasCutOff(job, stage) ? "stopped" : "done";
  if (stage.has_compute_start_time()) return "running";
  return stage.waiting() ? "waiting" : "-";
}

std::string stageTable(const v1::Job& job) {
  std::vector<std::vector<std::string>> rows{{"STAGE", "STATE", "STEPS", "INPUT WAIT", "COMPUTE", "PUBLISH", "TOTAL"}};
  for (const v1::StageProgress& stage : job.stages()) {
    const std::string& name = stage.group().empty() ? stage.stage() : stage.group();
    if (!stage.has_start_time()) {
      rows.push_back({name, stageState(job, stage), "-", "-", "-", "-", "-"});
      continue;
    }
    rows.push_back({name, stageState(job, stage),
                    stage.steps() == 0 ? "-" : fmt::format("{}/{}", stage.step(), stage.steps()),
                    formatSeconds(inputWaitSeconds(stage)),
                    formatSeconds(stage.has_compute() ? toSeconds(stage.compute()) : workSeconds(stage)),
                    formatSeconds(toSeconds(stage.publish())), formatSeconds(elapsedSeconds(stage))});
  }
  return rows.size() > 1 ? "\n" + formatTable(rows) + kStageLegend : "";
}

std::string transferTable(const v1::Job& job) {
  std::vector<std::vector<std::string>> rows{{"HAND-OFF", "FROM RANK", "BYTES", "TIME"}};
  for (const v1::EdgeTransfer& transfer : job.transfers()) {
    rows.push_back({transfer.edge(), std::to_string(transfer.rank()), formatBytes(transfer.bytes()),
                    fmt::format("{:.3f} ms", toSeconds(transfer.duration()) * 1e3)});
  }
  return rows.size() > 1 ? "\n" + formatTable(rows) + kHandoffLegend : "";
}

}  // namespace

std::string progressOf(const v1::Job& job) {
  if (job.state() == v1::JOB_STATE_QUEUED) {
    return fmt::format("position {}{}", job.queue_position(), returnText(job).empty() ? "" : ", put back");
  }
  if (job.state() == v1::JOB_STATE_FAILED) return statusCodeName(job.error().code());
  if (job.state() == v1::JOB_STATE_SUCCEEDED) return "done, " + formatBytes(job.result_bytes());
  if (const v1::StageProgress* awaited = awaitedStage(job)) return "waiting for " + awaited->stage();
  for (int i = job.stages_size() - 1; i >= 0; --i) {
    const v1::StageProgress& stage = job.stages(i);
    if (!stage.has_compute_start_time()) continue;
    return stage.steps() == 0 ? stage.stage() : fmt::format("{} {}/{}", stage.stage(), stage.step(), stage.steps());
  }
  return "-";
}

std::string formatJobs(const std::vector<v1::Job>& jobs) {
  std::vector<std::vector<std::string>> rows{{"ID", "STATE", "PROGRESS", "CREATED", "RUN TIME", "PROMPT"}};
  for (const v1::Job& job : jobs) {
    rows.push_back({job.id(), stateName(job.state()), progressOf(job), formatTime(job.create_time()), durationOf(job),
                    oneLine(job.parameters().prompt(), kPromptColumns)});
  }
  return formatTable(rows);
}

std::string formatJob(const v1::Job& job) {
  std::vector<std::vector<std::string>> rows{{"id", job.id()}, {"state", stateName(job.state())}};
  if (job.state() == v1::JOB_STATE_QUEUED) rows.push_back({"queue position", std::to_string(job.queue_position())});
  if (job.has_error()) rows.push_back({"error", statusCodeName(job.error().code()) + ": " + job.error().message()});
  if (job.has_remaining()) rows.push_back({"time left", formatSeconds(toSeconds(job.remaining()))});
  if (const v1::StageProgress* awaited = awaitedStage(job)) {
    const std::string reason = waitText(*awaited);
    rows.push_back({"waiting for", awaited->stage() + (reason.empty() ? "" : ": " + reason)});
  }
  if (job.restarts() > 0) rows.push_back({"restarts", std::to_string(job.restarts())});
  if (job.displacements() > 0) rows.push_back({"displacements", std::to_string(job.displacements())});
  if (job.has_restart_cause()) rows.push_back({"put back by", returnCause(job)});
  rows.push_back({"priority", std::to_string(job.priority())});
  rows.push_back({"created", formatTime(job.create_time())});
  if (job.has_start_time()) rows.push_back({"started", formatTime(job.start_time())});
  if (job.has_finish_time()) rows.push_back({"finished", formatTime(job.finish_time())});
  if (job.has_start_time()) rows.push_back({"run time", durationOf(job)});
  if (job.result_bytes() > 0) {
    rows.push_back({"result", formatBytes(job.result_bytes()) + (job.result_available() ? "" : " (no longer kept)")});
  }
  addParameters(job.parameters(), rows);
  return formatTable(rows) + stageTable(job) + transferTable(job);
}

}  // namespace latentd::ctl
