#include "tools/ctl/output_file.h"

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "tests/support/catch.h"

namespace latentd::ctl {
namespace {

namespace fs = std::filesystem;

struct Folder {
  fs::path path;
  Folder() {
    std::string name = (fs::temp_directory_path() / "out-XXXXXX").string();
    REQUIRE(mkdtemp(name.data()) != nullptr);
    path = name;
  }
  ~Folder() { fs::remove_all(path); }
  size_t entries() const { return static_cast<size_t>(std::distance(fs::directory_iterator(path), {})); }
};

std::string contentOf(const fs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

TEST_CASE("latentctl: a file appears when it is complete", "[latentctl][output]") {
  const Folder folder;
  const fs::path path = folder.path / "video.mp4";
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
  const Folder folder;
  const fs::path path = folder.path / "video.mp4";
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
  const Folder folder;
  std::ofstream(folder.path / "real.mp4") << "old";
  fs::create_symlink("real.mp4", folder.path / "link.mp4");
  auto output = OutputFile::open(folder.path / "link.mp4");
  REQUIRE(output.ok());
  REQUIRE(output->write("new").ok());
  REQUIRE(output->commit().ok());
  CHECK(fs::is_symlink(folder.path / "link.mp4"));
  CHECK(contentOf(folder.path / "real.mp4") == "new");
}

TEST_CASE("latentctl: a full device is an error that names the file", "[latentctl][output]") {
  auto output = OutputFile::open("/dev/full");
  REQUIRE(output.ok());
  const Status status = output->write("x");
  CHECK(status.code() == absl::StatusCode::kResourceExhausted);
  CHECK(messageOf(status).find("/dev/full") != std::string::npos);
}

TEST_CASE("latentctl: folders and missing folders are refused", "[latentctl][output]") {
  const Folder folder;
  CHECK(OutputFile::open(folder.path).status().code() == absl::StatusCode::kInvalidArgument);
  CHECK(OutputFile::open(folder.path / "missing" / "x.mp4").status().code() == absl::StatusCode::kNotFound);
}

}  // namespace latentd::ctl
