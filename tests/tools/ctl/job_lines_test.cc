#include "tools/ctl/job_lines.h"

#include <string>
#include <vector>

#include "tests/support/catch.h"

namespace latentd::ctl {
namespace {

using Lines = std::vector<std::string>;

// Ran from 100 on; text computed from 100 to 102, and denoise was dispatched with it.
v1::Job afterText() {
  v1::Job job;
  job.set_state(v1::JOB_STATE_RUNNING);
  job.mutable_create_time()->set_seconds(95);
  job.mutable_start_time()->set_seconds(100);
  for (const char* name : {"text", "denoise", "decode"})
    job.add_stages()->set_stage(name);
  v1::StageProgress& text = *job.mutable_stages(0);
  text.mutable_start_time()->set_seconds(100);
  text.mutable_compute_start_time()->set_seconds(100);
  text.mutable_finish_time()->set_seconds(102);
  job.mutable_stages(1)->mutable_start_time()->set_seconds(100);
  return job;
}

v1::Job denoising(uint32_t step) {
  v1::Job job = afterText();
  job.mutable_stages(1)->mutable_compute_start_time()->set_seconds(110);
  job.mutable_stages(1)->set_step(step);
  job.mutable_stages(1)->set_steps(4);
  return job;
}

}  // namespace

TEST_CASE("job_lines: a queued job tells for how long", "[latentctl][progress]") {
  JobLines lines;
  v1::Job job;
  job.set_state(v1::JOB_STATE_QUEUED);
  job.set_queue_position(3);
  job.mutable_create_time()->set_seconds(95);
  lines.update(job, 97);
  CHECK(lines.at(99) == Lines{"queued    position 3, for 4.00 s"});
  job.set_queue_position(2);
  lines.update(job, 100);
  CHECK(lines.at(170) == Lines{"queued    position 2, for 1:15"});
}

TEST_CASE("job_lines: a job that was put back says so, and how long it has waited since", "[latentctl][progress]") {
  JobLines lines;
  lines.update(denoising(1), 112);
  v1::Job job;
  job.set_state(v1::JOB_STATE_QUEUED);
  job.set_queue_position(1);
  job.mutable_create_time()->set_seconds(95);
  job.set_displacements(1);
  job.mutable_restart_cause()->set_message("decode rank 0: died");
  lines.update(job, 120);
  CHECK(lines.at(125) == Lines{"displaced: decode rank 0: died", "queued    position 1, for 5.00 s"});
}

TEST_CASE("job_lines: a stage that was dispatched and does not compute is waited for", "[latentctl][progress]") {
  JobLines lines;
  v1::Job job = afterText();
  lines.update(job, 102);
  CHECK(lines.at(113) == Lines{"text      done in 2.00 s", "waiting for denoise for 11.0 s"});
  job.mutable_stages(1)->set_wait_reason(v1::WAIT_REASON_GROUP_BUSY);
  lines.update(job, 103);
  CHECK(lines.at(113).back() == "waiting for denoise for 11.0 s: it runs another job");
  job.mutable_stages(1)->set_wait_reason(v1::WAIT_REASON_GROUP_NOT_READY);
  job.mutable_remaining()->set_seconds(9);
  lines.update(job, 103);
  CHECK(lines.at(113)[1] == "waiting for denoise for 11.0 s: its workers start again");
  CHECK(lines.at(113).back() == "in all    9.00 s left");
  lines.update(denoising(0), 111);
  CHECK(lines.at(113) ==
        Lines{"text      done in 2.00 s", "denoise   [................] 0/4  3.00 s, step 1 for 2.00 s"});
}

TEST_CASE("job_lines: the running stage and its step have their time", "[latentctl][progress]") {
  JobLines lines;
  lines.update(denoising(1), 112);
  lines.update(denoising(2), 114);
  lines.update(denoising(2), 115);  // something else changed
  CHECK(lines.at(116)[1] ==
        "denoise   [########........] 2/4  6.00 s, 2.00 s left, step 3 for 2.00 s");  // two steps in 4 s
  CHECK(lines.at(116).size() == 2);  // what decode will take is unknown
  v1::Job known = denoising(2);
  known.mutable_remaining()->set_seconds(9);
  lines.update(known, 116);
  CHECK(lines.at(116).back() == "in all    9.00 s left");
  CHECK(lines.at(118).back() == "in all    7.00 s left");
  // A step that takes longer than the others would have left it less than nothing.
  CHECK(lines.at(119)[1] == "denoise   [########........] 2/4  9.00 s, step 3 for 5.00 s");
  lines.update(denoising(4), 118);
  CHECK(lines.at(118) == Lines{"text      done in 2.00 s", "denoise   [################] 4/4  8.00 s"});
}

TEST_CASE("job_lines: what the first step prepares does not count for the others", "[latentctl][progress]") {
  JobLines lines;
  lines.update(denoising(0), 110);
  CHECK(lines.at(115)[1] == "denoise   [................] 0/4  5.00 s, step 1 for 5.00 s");
  lines.update(denoising(1), 120);
  CHECK(lines.at(120)[1] == "denoise   [####............] 1/4  10.0 s, 30.0 s left, step 2 for 0.00 s");
  lines.update(denoising(2), 121);
  CHECK(lines.at(121)[1] == "denoise   [########........] 2/4  11.0 s, 2.00 s left, step 3 for 0.00 s");
}

TEST_CASE("job_lines: a cancelled job tells for how long it has been stopping", "[latentctl][progress]") {
  JobLines lines;
  lines.update(denoising(1), 112);
  v1::Job job = denoising(1);
  job.set_state(v1::JOB_STATE_CANCELLING);
  lines.update(job, 113);
  CHECK(lines.at(114) == Lines{"text      done in 2.00 s",
                               "denoise   [####............] 1/4  4.00 s, step 2 for 2.00 s",
                               "cancelling: the stage stops at its next step; for 1.00 s"});
  job.set_state(v1::JOB_STATE_CANCELLED);
  job.mutable_finish_time()->set_seconds(119);
  job.mutable_stages(1)->mutable_finish_time()->set_seconds(119);
  lines.update(job, 119);
  CHECK(lines.at(130) == Lines{"text      done in 2.00 s", "denoise   stopped after 9.00 s"});
}

}  // namespace latentd::ctl
