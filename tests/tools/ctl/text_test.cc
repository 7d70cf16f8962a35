#include "tools/ctl/text.h"

#include <string>

#include "tests/support/catch.h"

namespace latentd::ctl {

TEST_CASE("latentctl: numbers in people's units", "[latentctl][text]") {
  CHECK(formatBytes(0) == "0 B");
  CHECK(formatBytes(1023) == "1023 B");
  CHECK(formatBytes(1536) == "1.5 KiB");
  CHECK(formatBytes(uint64_t{5} << 40) == "5.0 TiB");
  CHECK(formatSeconds(-3) == "0.00 s");
  CHECK(formatSeconds(0.254) == "0.25 s");
  CHECK(formatSeconds(9.996) == "10.0 s");
  CHECK(formatSeconds(59.9) == "59.9 s");
  CHECK(formatSeconds(59.96) == "1:00");
  CHECK(formatSeconds(98.9) == "1:39");
  CHECK(formatSeconds(3599.4) == "59:59");
  CHECK(formatSeconds(3599.6) == "1:00:00");
  CHECK(formatNumber(8) == "8");
  CHECK(formatNumber(2.5) == "2.5");
}

TEST_CASE("latentctl: durations survive the way into the protocol and back", "[latentctl][text]") {
  for (const int64_t milliseconds : {1, 500, 90'000, 3'600'250}) {
    CHECK(toSeconds(toDuration(std::chrono::milliseconds(milliseconds))) ==
          Approx(static_cast<double>(milliseconds) / 1000).epsilon(1e-9));
  }
}

TEST_CASE("latentctl: a line stays one line of its width", "[latentctl][text]") {
  CHECK(oneLine("short", 10) == "short");
  CHECK(oneLine("a\nb\tc", 10) == "a b c");
  CHECK(oneLine("0123456789", 10) == "0123456789");
  CHECK(oneLine("0123456789x", 10) == "0123456...");
  CHECK(oneLine("\xc3\xa4\xc3\xa4\xc3\xa4\xc3\xa4\xc3\xa4", 4) == "\xc3\xa4...");
  CHECK(oneLine("abcdef", 2) == "ab");
}

TEST_CASE("latentctl: tables align by character, not byte", "[latentctl][text]") {
  CHECK(formatTable({{"A", "B"}, {"K\xc3\xa4se", "1"}, {"x", "22"}}) == "A     B\nK\xc3\xa4se  1\nx     22\n");
}

TEST_CASE("latentctl: a stage that was dispatched early waits, and its work counts from its inputs on",
          "[latentctl][text]") {
  v1::StageProgress stage;
  CHECK(elapsedSeconds(stage) == 0);
  stage.mutable_start_time()->set_seconds(101);
  stage.mutable_finish_time()->set_seconds(113);
  CHECK(inputWaitSeconds(stage) == 12);
  CHECK(workSeconds(stage) == 0);
  stage.mutable_compute_start_time()->set_seconds(110);
  CHECK(elapsedSeconds(stage) == 12);
  CHECK(inputWaitSeconds(stage) == 9);
  CHECK(workSeconds(stage) == 3);
  stage.mutable_input_wait()->set_seconds(10);  // the worker's own measure
  CHECK(workSeconds(stage) == 2);
}

TEST_CASE("latentctl: a stage that ended with its failed job was cut off", "[latentctl][text]") {
  v1::Job job;
  v1::StageProgress stage;
  stage.mutable_start_time()->set_seconds(101);
  stage.mutable_finish_time()->set_seconds(113);
  job.mutable_finish_time()->set_seconds(113);
  job.set_state(v1::JOB_STATE_SUCCEEDED);
  CHECK_FALSE(wasCutOff(job, stage));
  job.set_state(v1::JOB_STATE_CANCELLED);
  CHECK(wasCutOff(job, stage));
  stage.mutable_finish_time()->set_seconds(112);
  CHECK_FALSE(wasCutOff(job, stage));
}

TEST_CASE("latentctl: what put a job back into the queue is told in one line", "[latentctl][text]") {
  v1::Job job;
  CHECK(returnText(job).empty());
  job.mutable_restart_cause()->set_message("denoise rank 0: died: signal SIGKILL; its last lines:\n  a\n  b");
  CHECK(returnCause(job) == "denoise rank 0: died: signal SIGKILL; its last lines:");
  job.mutable_restart_cause()->set_message("g0 died");
  job.set_restarts(1);
  CHECK(returnText(job) == "restarted: g0 died");
  job.set_displacements(3);
  CHECK(returnText(job) == "restarted, displaced 3 times: g0 died");
  job.set_restarts(0);
  CHECK(returnText(job) == "displaced 3 times: g0 died");
}

TEST_CASE("latentctl: JSON names the codes of errors, and only of errors", "[latentctl][text]") {
  v1::ListJobsResponse list;
  v1::Job& job = *list.add_jobs();
  job.set_id("job1");
  job.set_priority(14);
  job.mutable_error()->set_code(14);
  job.mutable_error()->set_message("died");
  job.mutable_restart_cause()->set_code(4);
  job.set_displacements(2);
  job.add_stages()->set_wait_reason(v1::WAIT_REASON_GROUP_BUSY);
  for (const bool pretty : {false, true}) {
    const std::string text = toJson(list, pretty);
    CAPTURE(text);
    CHECK(text.back() == '\n');
    CHECK((text.find('\n') == text.size() - 1) == !pretty);
    CHECK(text.find("UNAVAILABLE") != std::string::npos);
    CHECK(text.find("DEADLINE_EXCEEDED") != std::string::npos);
    CHECK(text.find(pretty ? "\"displacements\": 2" : "\"displacements\":2") != std::string::npos);
    CHECK(text.find("WAIT_REASON_GROUP_BUSY") != std::string::npos);
    CHECK(text.find(pretty ? "\"waiting\": false" : "\"waiting\":false") != std::string::npos);
    CHECK(text.find(pretty ? "\"priority\": 14" : "\"priority\":14") != std::string::npos);
  }
}

TEST_CASE("latentctl: states read as words", "[latentctl][text]") {
  CHECK(stateName(v1::JOB_STATE_CANCELLING) == "cancelling");
  CHECK(stateName(v1::WORKER_STATE_WARMING_UP) == "warming up");
  CHECK(statusCodeName(14) == "UNAVAILABLE");
}

}  // namespace latentd::ctl
