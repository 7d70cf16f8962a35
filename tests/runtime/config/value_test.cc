#include "runtime/config/value.h"

#include "runtime/config/spelling.h"
#include "tests/support/catch.h"

namespace latentd::config {

TEST_CASE("value: sizes and times print with the largest unit that is exact", "[config][value]") {
  CHECK(formatBytes(0) == "0B");
  CHECK(formatBytes(17) == "17B");
  CHECK(formatBytes(1536) == "1536B");
  CHECK(formatBytes(64 << 10) == "64KiB");
  CHECK(formatBytes(uint64_t{3} << 40) == "3TiB");
  CHECK(formatDuration(milliseconds(0)) == "0ms");
  CHECK(formatDuration(milliseconds(1500)) == "1500ms");
  CHECK(formatDuration(std::chrono::seconds(90)) == "90s");
  CHECK(formatDuration(std::chrono::hours(48)) == "2d");
}

TEST_CASE("value: an address prints as it is written", "[config][value]") {
  const Rule rule{Type::kEndpoint, {}, {}};
  for (const char* text : {"127.0.0.1:0", "localhost:80", "[::1]:65535", "0.0.0.0:7411"}) {
    INFO(text);
    const StatusOr<Value> value = parseScalar(rule, text);
    REQUIRE(value.ok());
    CHECK(formatValue(rule, *value) == text);
  }
  for (const char* text : {"", ":", "127.0.0.1", "::1:80", "[::1:80", "host.example:80", "127.0.0.1:+1", "1.2.3:4"}) {
    INFO(text);
    CHECK_FALSE(parseScalar(rule, text).ok());
  }
}

TEST_CASE("value: numbers take no decoration", "[config][value]") {
  const Rule count{Type::kCount, {0, 100}, {}};
  for (const char* text : {"", " 1", "1 ", "+1", "0x10", "1e1", "1_0"}) {
    INFO(text);
    CHECK_FALSE(parseScalar(count, text).ok());
  }
  const Rule real{Type::kReal, {0, 100}, {}};
  for (const char* text : {"", "inf", "-0.1", "1,5", "1.5x"}) {
    INFO(text);
    CHECK_FALSE(parseScalar(real, text).ok());
  }
  CHECK(std::get<double>(*parseScalar(real, "29.97")) == 29.97);
}

TEST_CASE("spelling: the nearest words come first and unlike ones not at all", "[config][value]") {
  const std::vector<std::string> words = {"listen", "http", "limits", "length_max"};
  CHECK(nearest("lisetn", words) == std::vector<std::string>{"listen"});
  CHECK(nearest("limit", words) == std::vector<std::string>{"limits"});
  CHECK(nearest("lenght_max", words) == std::vector<std::string>{"length_max"});
  CHECK(nearest("banana", words).empty());
  CHECK(nearest("", words).empty());
  CHECK(nearest(std::string(100'000, 'x'), words).empty());
  CHECK(quotedList({"a"}) == "'a'");
  CHECK(quotedList({"a", "b", "c"}) == "'a', 'b' or 'c'");
}

}  // namespace latentd::config
