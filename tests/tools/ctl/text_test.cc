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

TEST_CASE("latentctl: invalid UTF-8 is found where it is", "[latentctl][text]") {
  CHECK_FALSE(invalidUtf8At("plain"));
  CHECK_FALSE(invalidUtf8At("K\xc3\xa4se \xe2\x82\xac \xf0\x9f\x8e\xac"));
  CHECK_FALSE(invalidUtf8At(std::string("a\0b", 3)));
  CHECK(invalidUtf8At("ab\xff") == 2);
  CHECK(invalidUtf8At("\x80") == 0);
  CHECK(invalidUtf8At("\xc0\x80") == 0);          // overlong
  CHECK(invalidUtf8At("\xe0\x80\x80") == 0);      // overlong
  CHECK(invalidUtf8At("x\xed\xa0\x80") == 1);     // a surrogate
  CHECK(invalidUtf8At("\xf4\x90\x80\x80") == 0);  // beyond Unicode
  CHECK(invalidUtf8At("abc\xe2\x82") == 3);       // cut
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

TEST_CASE("latentctl: states read as words", "[latentctl][text]") {
  CHECK(stateName(v1::JOB_STATE_CANCELLING) == "cancelling");
  CHECK(workerStateName(v1::WORKER_STATE_WARMING_UP) == "warming up");
  CHECK(statusCodeName(14) == "UNAVAILABLE");
}

}  // namespace latentd::ctl
