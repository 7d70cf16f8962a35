#include "runtime/supervisor/remaining_estimate.h"

#include <chrono>

#include "tests/support/catch.h"

namespace latentd::supervisor {
namespace {

using std::chrono::seconds;

const Clock::WallTime kStart(seconds(1'000'000));

double at(int64_t second) {
  return std::chrono::duration<double>((kStart + seconds(second)).time_since_epoch()).count();
}

void setTime(google::protobuf::Timestamp& time, Clock::WallTime at) {
  time.set_seconds(std::chrono::duration_cast<seconds>(at.time_since_epoch()).count());
}

v1::Job twoStages() {
  v1::Job job;
  job.mutable_parameters()->set_frames(5);
  job.mutable_parameters()->set_width(32);
  job.mutable_parameters()->set_height(32);
  job.mutable_parameters()->set_steps(4);
  for (v1::StageProgress* stage : {job.add_stages(), job.add_stages()})
    setTime(*stage->mutable_start_time(), kStart);  // dispatched together
  return job;
}

}  // namespace

TEST_CASE("remaining_estimate: the wait for inputs does not count, neither before nor after the first step",
          "[supervisor]") {
  RemainingEstimate estimate(2);
  v1::Job job = twoStages();
  estimate.observe(1, job.parameters(), 4, 8);  // an earlier job: 8 s
  setTime(*job.mutable_stages(0)->mutable_finish_time(), kStart + seconds(50));
  std::vector<StepPace> paces(2);
  CHECK(estimate.remaining(job, paces, kStart + seconds(50)) == seconds(8));
  setTime(*job.mutable_stages(1)->mutable_compute_start_time(), kStart + seconds(50));
  CHECK(estimate.remaining(job, paces, kStart + seconds(51)) == seconds(7));
  job.mutable_stages(1)->set_step(1);
  job.mutable_stages(1)->set_steps(4);
  paces[1].note(1, at(53), at(50));
  CHECK(estimate.remaining(job, paces, kStart + seconds(53)) == seconds(9));  // 3 s a step
  CHECK(estimate.remaining(job, paces, kStart + seconds(54)) == seconds(8));
  // The first step had something to prepare.
  job.mutable_stages(1)->set_step(2);
  paces[1].note(2, at(54), at(50));
  CHECK(estimate.remaining(job, paces, kStart + seconds(54)) == seconds(2));
  CHECK(estimate.remaining(job, paces, kStart + seconds(70)) == seconds(0));
}

TEST_CASE("step_pace: whoever joins late knows nothing before a step ends, and counts whole steps alone",
          "[supervisor]") {
  StepPace pace;
  pace.join(3, 10);
  CHECK_FALSE(pace.left(8, 11));
  pace.note(4, 12, 4);
  CHECK(pace.left(8, 12) == 8.0);  // 4 steps since the start at 4
  pace.note(5, 15, 4);
  CHECK(pace.left(8, 16) == 8.0);  // 3 s a step, of which one has passed
  pace.note(8, 24, 4);
  CHECK(pace.left(8, 25) == 0.0);
}

TEST_CASE("remaining_estimate: nothing is said while a later stage is unknown", "[supervisor]") {
  RemainingEstimate estimate(2);
  v1::Job job = twoStages();
  v1::StageProgress& first = *job.mutable_stages(0);
  setTime(*first.mutable_compute_start_time(), kStart);
  first.set_step(4);
  first.set_steps(4);
  std::vector<StepPace> paces(2);
  paces[0].note(4, at(8), at(0));
  CHECK_FALSE(estimate.remaining(job, paces, kStart + seconds(8)));
  estimate.observe(1, job.parameters(), 1, 3);  // an earlier job's last stage: 3 s
  CHECK(estimate.remaining(job, paces, kStart + seconds(8)) == seconds(3));
}

}  // namespace latentd::supervisor
