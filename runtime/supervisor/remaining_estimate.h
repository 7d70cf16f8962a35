#pragma once

#include <optional>
#include <vector>

#include "proto/api.pb.h"
#include "runtime/base/clock.h"
#include "runtime/supervisor/step_pace.h"

namespace latentd::supervisor {

// How long the rest of a job will take, from what its steps took so far and what each stage took for earlier jobs,
// scaled by size. An estimate for people: nothing depends on it.
// Owner: JobManager. Thread: the supervisor's loop.
class RemainingEstimate {
 public:
  // stages: how many a job passes; replicas of one share what is known of it.
  explicit RemainingEstimate(size_t stages) : rates_(stages) {}

  // The stage at this place in the pipeline ended well for a job of these parameters.
  void observe(size_t place, const v1::JobParameters& parameters, uint32_t steps, double seconds);
  // Nothing while there is a stage left of which neither its own steps nor an earlier job tell.
  // paces: of its stages in this run.
  std::optional<Clock::Duration> remaining(const v1::Job& job, const std::vector<StepPace>& paces,
                                           Clock::WallTime now) const;

 private:
  struct Rate {
    double seconds_per_work = 0;
    bool scales_with_steps = false;
  };
  double work(const v1::JobParameters& parameters, bool scales_with_steps) const;
  std::optional<double> stageSeconds(size_t place, const v1::JobParameters& parameters) const;

  std::vector<std::optional<Rate>> rates_;  // by place in the pipeline
};

}  // namespace latentd::supervisor
