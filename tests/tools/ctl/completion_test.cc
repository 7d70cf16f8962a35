#include <cstdlib>
#include <fstream>
#include <string>

#include "tests/tools/ctl/ctl_fixture.h"

namespace latentd::testing {
namespace {

bool installed(const std::string& program) {
  return std::system(("command -v " + program + " >/dev/null").c_str()) == 0;
}

// What bash offers for the words, of which the last is being typed. The script's own calls of latentctl go to the
// fixture's daemon.
std::string bashOffers(const CtlFixture& fixture, const std::string& words) {
  const std::string script = "export PATH=" + std::filesystem::path(builtBinary("tools")).string() +
                             ":$PATH LATENTD_ENDPOINT=" + fixture.daemon.endpoint() +
                             "; source completion.bash; COMP_WORDS=(" + words +
                             "); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _latentctl; echo \"${COMPREPLY[*]}\"";
  RunningProgram bash({"bash", "--norc", "-c", script}, fixture.options());
  REQUIRE(bash.wait() == 0);
  CHECK(bash.error().empty());
  return bash.output();
}

}  // namespace

TEST_CASE("latentctl: the completion scripts parse in their shells", "[latentctl][completion]") {
  CtlFixture fixture;
  for (const std::string shell : {"bash", "zsh", "fish"}) {
    const CtlResult script = fixture.run({"completion", shell});
    CAPTURE(shell);
    REQUIRE(script.code == 0);
    for (const char* word : {"submit", "negative-prompt", "download", "y4m"})
      CHECK(contains(script.output, word));
    if (!installed(shell)) continue;  // bash always is; the others where a person uses them
    std::ofstream(fixture.folder / "script") << script.output;
    RunningProgram check({shell, "-n", "script"}, fixture.options());
    REQUIRE(check.wait() == 0);
    CHECK(check.error().empty());
  }
  CHECK(fixture.run({"completion", "powershell"}).code == 2);
}

TEST_CASE("latentctl: bash completes commands, flags, values and jobs", "[latentctl][completion]") {
  CtlFixture fixture;
  std::ofstream(fixture.folder / "completion.bash") << fixture.run({"completion", "bash"}).output;
  const std::string id = fixture.leave("wait");
  CHECK(bashOffers(fixture, "latentctl su") == "submit\n");
  CHECK(bashOffers(fixture, "latentctl --js") == "--json\n");
  CHECK(bashOffers(fixture, "latentctl submit --prompt-f") == "--prompt-file\n");
  CHECK(bashOffers(fixture, "latentctl submit --neg") == "--negative-prompt\n");
  CHECK(bashOffers(fixture, "latentctl --json submit --format y") == "y4m\n");
  CHECK(bashOffers(fixture, "latentctl list --state can") == "cancelling cancelled\n");
  CHECK(bashOffers(fixture, "latentctl list --state running,f") == "running,failed\n");
  CHECK(bashOffers(fixture, "latentctl submit --endp") == "--endpoint\n");
  CHECK(bashOffers(fixture, "latentctl submit -o completion.b") == "completion.bash\n");
  const std::string done = fixture.leave("a finished job");
  REQUIRE(fixture.becomes(done, "JOB_STATE_SUCCEEDED"));
  CHECK(bashOffers(fixture, "latentctl cancel j") == id + "\n");
  CHECK(bashOffers(fixture, "latentctl download j") == done + "\n");
  CHECK(bashOffers(fixture, "latentctl get j") == done + " " + id + "\n");
  CHECK(bashOffers(fixture, "latentctl completion f") == "fish\n");
  CHECK(bashOffers(fixture, "latentctl submit --prompt x") == "\n");
}

}  // namespace latentd::testing
