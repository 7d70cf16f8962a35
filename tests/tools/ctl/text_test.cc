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
  CHECK(formatSeconds(99.96) == "1:40");
  CHECK(formatSeconds(3599.4) == "59:59");
  CHECK(formatSeconds(3599.6) == "1:00:00");
  CHECK(formatNumber(8) == "8");
  CHECK(formatNumber(2.5) == "2.5");
}

TEST_CASE("latentctl: durations survive the way into the protocol and back", "[latentctl][text]") {
  for (const double seconds : {0.001, 0.5, 90.0, 3600.25}) {
    CHECK(toSeconds(toDuration(seconds)) == Approx(seconds).epsilon(1e-9));
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

TEST_CASE("latentctl: a stage that was dispatched early waits, and its work counts from the end of the one before",
          "[latentctl][text]") {
  v1::Job job;
  v1::StageProgress& first = *job.add_stages();
  first.mutable_start_time()->set_seconds(100);
  v1::StageProgress& second = *job.add_stages();
  second.mutable_start_time()->set_seconds(101);
  CHECK_FALSE(waitsForInput(job, 0));
  CHECK(waitsForInput(job, 1));
  second.set_step(1);  // it began before the first one's end: chunks
  CHECK_FALSE(waitsForInput(job, 1));
  second.set_step(0);
  first.mutable_finish_time()->set_seconds(110);
  CHECK_FALSE(waitsForInput(job, 1));
  second.mutable_finish_time()->set_seconds(113);
  CHECK(elapsedSeconds(second) == 12);
  CHECK(workSeconds(job, 1) == 3);
  CHECK(workSeconds(job, 0) == 10);
}

TEST_CASE("latentctl: states read as words", "[latentctl][text]") {
  CHECK(stateName(v1::JOB_STATE_CANCELLING) == "cancelling");
  CHECK(workerStateName(v1::WORKER_STATE_WARMING_UP) == "warming up");
  CHECK(statusCodeName(14) == "UNAVAILABLE");
}

}  // namespace latentd::ctl
