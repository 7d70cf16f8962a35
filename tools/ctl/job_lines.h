#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "proto/api.pb.h"
#include "runtime/supervisor/step_pace.h"

namespace latentd::ctl {

// The live block of a job: its place in the queue, then a line a stage, then what it waits for and the time left. Times
// are seconds since the epoch, as nowSeconds() tells; the lines of a job that has not changed differ as they pass.
// Owner: Progress. Thread: one at a time.
class JobLines {
 public:
  void update(const v1::Job& job, double now);
  std::vector<std::string> at(double now) const;

 private:
  std::string stageLine(const v1::StageProgress& stage, double now) const;
  std::string runningLine(const v1::StageProgress& stage, double now) const;

  v1::Job job_;
  // The API does not tell when a step or a state began: when it was first seen.
  std::map<std::string, supervisor::StepPace> paces_;  // by stage
  double state_since_ = 0;
  double updated_ = 0;
};

// The stage that a running job waits for: none of its stages computes, and this is its first that has not ended. Null:
// none.
const v1::StageProgress* awaitedStage(const v1::Job& job);

// Until the whole job's end, where the daemon knows it. `since_update`: seconds of work since then.
std::optional<double> secondsLeft(const v1::Job& job, double since_update = 0);

}  // namespace latentd::ctl
