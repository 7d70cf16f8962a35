#include "tools/ctl/duration.h"

#include <string>

#include "tests/support/catch.h"

namespace latentd::ctl {

using std::chrono::milliseconds;

TEST_CASE("latentctl: durations have a unit", "[latentctl]") {
  const auto parse = [](const char* text) { return parseDuration(text, milliseconds(1), std::chrono::hours(48)); };
  CHECK(*parse("500ms") == milliseconds(500));
  CHECK(*parse("90s") == milliseconds(90'000));
  CHECK(*parse("10m") == milliseconds(600'000));
  CHECK(*parse("1h") == milliseconds(3'600'000));
  CHECK(*parse("2d") == milliseconds(172'800'000));
  for (const char* bad : {"", "5", "0s", "3d", "-5s", "1.5h", "5 s", "5parsecs", "99999999999999999999d"}) {
    CAPTURE(bad);
    const Status status = parse(bad).status();
    CHECK(status.code() == absl::StatusCode::kInvalidArgument);
    CHECK((messageOf(status).find("write 5s") != std::string::npos) == (std::string(bad) == "5"));
  }
}

}  // namespace latentd::ctl
