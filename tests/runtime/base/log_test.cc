#include "runtime/base/log.h"

#include <fcntl.h>
#include <poll.h>
#include <spdlog/formatter.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "runtime/base/log_sink.h"
#include "runtime/base/unique_fd.h"
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

TEST_CASE("log: a pipe that nobody reads holds nobody up, and what is missing is told where it is", "[base][log]") {
  std::array<int, 2> ends{};
  REQUIRE(::pipe2(ends.data(), O_CLOEXEC) == 0);
  const UniqueFd read_end(ends[0]), write_end(ends[1]);
  LogSink sink(write_end.get());
  sink.set_formatter(makeLogFormatter({.process = "latentd"}));
  constexpr int kLines = 2000;
  // Longer than what a pipe takes at once, and all of them more than it holds.
  const std::string filler(5000, 'x');
  const auto say = [&](int number) {
    const std::string text = "line " + std::to_string(number) + " " + filler;
    sink.log({"c", spdlog::level::info, spdlog::string_view_t(text.data(), text.size())});
  };
  const auto begin = std::chrono::steady_clock::now();
  for (int number = 0; number < kLines; ++number)
    say(number);
  CHECK(std::chrono::steady_clock::now() - begin < LogSink::kPatience * kLines / 4);
  CHECK((::fcntl(write_end.get(), F_GETFL) & O_NONBLOCK) == 0);

  const auto readAll = [&] {
    std::string text;
    std::array<char, 65536> buffer{};
    for (pollfd entry{read_end.get(), POLLIN, 0}; ::poll(&entry, 1, 0) == 1;) {
      const ssize_t got = ::read(read_end.get(), buffer.data(), buffer.size());
      REQUIRE(got > 0);
      text.append(buffer.data(), static_cast<size_t>(got));
    }
    return text;
  };
  const std::string before = readAll();
  CHECK(before.find(" c: line 0 x") != std::string::npos);
  say(kLines);
  const std::string after = readAll();
  size_t whole = 0;
  for (size_t at = 0; (at = before.find("x\n", at)) != std::string::npos; ++at)
    ++whole;
  // Half a line ends before the next one begins.
  CHECK((before.back() == '\n' || after.front() == '\n'));
  CHECK(after.find(" W latentd log: " + std::to_string(kLines - whole) + " lines are missing here") !=
        std::string::npos);
  CHECK(after.find(" c: line " + std::to_string(kLines) + " x") != std::string::npos);
  CHECK(after.ends_with("x\n"));
}

TEST_CASE("log: a process's name stands as it is", "[base][log]") {
  const auto formatter = makeLogFormatter({.json = true, .process = "100%v/0"});
  spdlog::memory_buf_t out;
  formatter->format({"c", spdlog::level::info, "m"}, out);
  CHECK(nlohmann::json::parse(std::string(out.data(), out.size()))["process"] == "100%v/0");
}

}  // namespace latentd
