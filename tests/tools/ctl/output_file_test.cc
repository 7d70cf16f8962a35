#include "tools/ctl/output_file.h"

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "tests/support/catch.h"
#include "tests/support/temp_dir.h"

namespace latentd::ctl {
namespace {

namespace fs = std::filesystem;

std::string contentOf(const fs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

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
