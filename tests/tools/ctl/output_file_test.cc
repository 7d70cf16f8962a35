#include "tools/ctl/output_file.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "runtime/base/unique_fd.h"
#include "tests/support/catch.h"
#include "tests/support/temp_dir.h"

namespace latentd::ctl {
namespace {

namespace fs = std::filesystem;

std::string contentOf(const fs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Pid of a process that has been killed while it wrote.
pid_t killWhileWriting(const fs::path& path, OutputFile::Unfinished unfinished) {
  const pid_t child = fork();
  if (child == 0) {
    auto output = OutputFile::open(path, unfinished);
    if (output.ok()) output->write("half of").IgnoreError();
    raise(SIGKILL);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  REQUIRE(WIFSIGNALED(status));
  return child;
}

bool hasUnnamedFiles(const std::string& folder) {
  return UniqueFd(::open(folder.c_str(), O_WRONLY | O_TMPFILE | O_CLOEXEC, 0600)).valid();
}

}  // namespace

TEST_CASE("latentctl: a killed process leaves nothing, or what the next one removes", "[latentctl][output]") {
  const testing::TempDir folder;
  const fs::path path = fs::path(folder.path()) / "video.mp4";
  killWhileWriting(path, OutputFile::Unfinished::kUnnamed);
  CHECK(folder.entries() == (hasUnnamedFiles(folder.path()) ? 0 : 1));
  killWhileWriting(path, OutputFile::Unfinished::kNamed);
  CHECK(folder.entries() >= 1);
  for (const auto unfinished : {OutputFile::Unfinished::kNamed, OutputFile::Unfinished::kUnnamed}) {
    auto output = OutputFile::open(path, unfinished);
    REQUIRE(output.ok());
    REQUIRE(output->write("all of it").ok());
    REQUIRE(output->commit().ok());
    CHECK(contentOf(path) == "all of it");
    CHECK(folder.entries() == 1);
  }
}

TEST_CASE("latentctl: only what a dead process left of the same target is removed", "[latentctl][output]") {
  const testing::TempDir folder;
  const pid_t dead = killWhileWriting(fs::path(folder.path()) / "x.mp4", OutputFile::Unfinished::kUnnamed);
  const std::string gone = std::to_string(dead);
  const std::string alive = std::to_string(getppid());
  const auto make = [&](const std::string& name) { std::ofstream(fs::path(folder.path()) / name) << "part"; };
  const std::vector<std::string> others{".video.mp4." + alive + ".part", ".other.mp4." + gone + ".part",
                                        ".video.mp4.x" + gone + ".part", "video.mp4." + gone + ".part",
                                        ".video.mp4.part"};
  for (const std::string& name : others)
    make(name);
  make(".video.mp4." + gone + ".part");
  REQUIRE(OutputFile::open(fs::path(folder.path()) / "video.mp4").ok());
  for (const std::string& name : others)
    CHECK(fs::exists(fs::path(folder.path()) / name));
  CHECK_FALSE(fs::exists(fs::path(folder.path()) / (".video.mp4." + gone + ".part")));
}

TEST_CASE("latentctl: a file appears when it is complete", "[latentctl][output]") {
  const testing::TempDir folder;
  const fs::path path = fs::path(folder.path()) / "video.mp4";
  {
    auto output = OutputFile::open(path);
    REQUIRE(output.ok());
    REQUIRE(output->write("all of it").ok());
    CHECK_FALSE(fs::exists(path));
    REQUIRE(output->commit().ok());
  }
  CHECK(contentOf(path) == "all of it");
  CHECK(folder.entries() == 1);
}

TEST_CASE("latentctl: what was not completed leaves nothing and harms nothing", "[latentctl][output]") {
  const testing::TempDir folder;
  const fs::path path = fs::path(folder.path()) / "video.mp4";
  std::ofstream(path) << "from before";
  {
    auto output = OutputFile::open(path);
    REQUIRE(output.ok());
    REQUIRE(output->write("half of").ok());
  }
  CHECK(contentOf(path) == "from before");
  CHECK(folder.entries() == 1);
}

TEST_CASE("latentctl: a link stays a link", "[latentctl][output]") {
  const testing::TempDir folder;
  std::ofstream(fs::path(folder.path()) / "real.mp4") << "old";
  fs::create_symlink("real.mp4", fs::path(folder.path()) / "link.mp4");
  auto output = OutputFile::open(fs::path(folder.path()) / "link.mp4");
  REQUIRE(output.ok());
  REQUIRE(output->write("new").ok());
  REQUIRE(output->commit().ok());
  CHECK(fs::is_symlink(fs::path(folder.path()) / "link.mp4"));
  CHECK(contentOf(fs::path(folder.path()) / "real.mp4") == "new");
}

TEST_CASE("latentctl: a full device is an error that names the file", "[latentctl][output]") {
  auto output = OutputFile::open("/dev/full");
  REQUIRE(output.ok());
  const Status status = output->write("x");
  CHECK(status.code() == absl::StatusCode::kResourceExhausted);
  CHECK(messageOf(status).find("/dev/full") != std::string::npos);
}

TEST_CASE("latentctl: folders and missing folders are refused", "[latentctl][output]") {
  const testing::TempDir folder;
  CHECK(OutputFile::open(fs::path(folder.path())).status().code() == absl::StatusCode::kInvalidArgument);
  CHECK(OutputFile::open(fs::path(folder.path()) / "missing" / "x.mp4").status().code() == absl::StatusCode::kNotFound);
}

}  // namespace latentd::ctl
