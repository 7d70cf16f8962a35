#include "runtime/base/log.h"

#include <spdlog/formatter.h>

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "tests/support/catch.h"

namespace latentd {
namespace {

// The line of one event, its end included.
std::string lineOf(std::string_view message, bool json) {
  const auto formatter = makeLogFormatter({.json = json, .process = "denoise/0"});
  spdlog::memory_buf_t out;
  formatter->format({"stage", spdlog::level::warn, spdlog::string_view_t(message.data(), message.size())}, out);
  return {out.data(), out.size()};
}

constexpr std::string_view kHostile = "a\nb\r\x1b[31m\t\"\\\x7f \xff\xc3 caf\xc3\xa9 \xe2\x82";

}  // namespace

TEST_CASE("log: an event is one line, with time, level, process and component", "[base][log]") {
  const std::string line = lineOf("loaded 3 shards", false);
  CHECK(line.size() == std::string("2026-01-02 03:04:05.678 W denoise/0 stage: loaded 3 shards\n").size());
  CHECK(line.find(" W denoise/0 stage: loaded 3 shards\n") == 23);
  const auto object = nlohmann::json::parse(lineOf("loaded 3 shards", true));
  CHECK(object["level"] == "warning");
  CHECK(object["process"] == "denoise/0");
  CHECK(object["component"] == "stage");
  CHECK(object["message"] == "loaded 3 shards");
}

TEST_CASE("log: what a library prints cannot break a line, a terminal or a reader of JSON", "[base][log]") {
  const std::string line = lineOf(kHostile, false);
  CHECK(line.find('\n') == line.size() - 1);
  CHECK(line.substr(line.find("stage: ")) ==
        "stage: a | b\\x0d\\x1b[31m \"\\\\x7f \xef\xbf\xbd\xef\xbf\xbd caf\xc3\xa9 \xef\xbf\xbd\xef\xbf\xbd\n");
  const std::string object = lineOf(kHostile, true);
  CHECK(object.find('\n') == object.size() - 1);
  // parse() insists on UTF-8.
  CHECK(nlohmann::json::parse(object)["message"] ==
        "a\nb\r\x1b[31m\t\"\\\x7f \xef\xbf\xbd\xef\xbf\xbd caf\xc3\xa9 \xef\xbf\xbd\xef\xbf\xbd");
}

TEST_CASE("log: a process's name stands as it is", "[base][log]") {
  const auto formatter = makeLogFormatter({.json = true, .process = "100%v/0"});
  spdlog::memory_buf_t out;
  formatter->format({"c", spdlog::level::info, "m"}, out);
  CHECK(nlohmann::json::parse(std::string(out.data(), out.size()))["process"] == "100%v/0");
}

}  // namespace latentd
