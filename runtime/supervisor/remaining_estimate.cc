#include "runtime/supervisor/remaining_estimate.h"

#include <algorithm>
#include <chrono>

#include "runtime/supervisor/timestamps.h"

namespace latentd::supervisor {
namespace {

// Weight of the newest observation: a changed load on the machine shows after a few jobs, one odd job does not rule.
constexpr double kNewestWeight = 0.3;

}  // namespace

double RemainingEstimate::work(const v1::JobParameters& parameters, bool scales_with_steps) const {
  const double pixels = double(parameters.frames()) * parameters.width() * parameters.height();
  return scales_with_steps ? pixels * parameters.steps() : pixels;
}

void RemainingEstimate::observe(size_t place, const v1::JobParameters& parameters, uint32_t steps, double seconds) {
  const bool scales = steps == parameters.steps();
  const double newest = seconds / work(parameters, scales);
  std::optional<Rate>& rate = rates_[place];
  if (!rate || rate->scales_with_steps != scales) {
    rate = Rate{newest, scales};
  } else {
    rate->seconds_per_work += kNewestWeight * (newest - rate->seconds_per_work);
  }
}

std::optional<double> RemainingEstimate::stageSeconds(size_t place, const v1::JobParameters& parameters) const {
  if (!rates_[place]) return std::nullopt;
  return rates_[place]->seconds_per_work * work(parameters, rates_[place]->scales_with_steps);
}

std::optional<Clock::Duration> RemainingEstimate::remaining(const v1::Job& job, const std::vector<StepPace>& paces,
                                                            Clock::WallTime now) const {
  double seconds = 0;
  for (int place = 0; place < job.stages_size(); ++place) {
    const v1::StageProgress& stage = job.stages(place);
    if (stage.has_finish_time()) continue;
    const std::optional<double> whole = stageSeconds(place, job.parameters());
    const std::optional<double> by_steps = paces[place].left(stage.steps(), toSeconds(now));
    if (stage.has_compute_start_time() && by_steps) {
      seconds += *by_steps;
    } else if (!whole) {
      return std::nullopt;
    } else if (stage.has_compute_start_time()) {
      seconds += std::max(0.0, *whole - (toSeconds(now) - toSeconds(stage.compute_start_time())));
    } else {
      seconds += *whole;
    }
  }
  return std::chrono::duration_cast<Clock::Duration>(std::chrono::duration<double>(std::max(0.0, seconds)));
}

}  // namespace latentd::supervisor
