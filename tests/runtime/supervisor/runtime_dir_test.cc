#include "runtime/supervisor/runtime_dir.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <optional>

#include "tests/support/catch.h"
#include "tests/support/temp_dir.h"

namespace latentd::supervisor {
namespace {

namespace fs = std::filesystem;

TEST_CASE("runtime_dir: private, and gone with its owner", "[supervisor]") {
  const testing::TempDir parent;
  {
    auto dir = RuntimeDir::create(parent.path() + "/made");
    REQUIRE(dir.ok());
    struct stat info {};
    REQUIRE(stat(dir->path().c_str(), &info) == 0);
    CHECK((info.st_mode & 0777) == 0700);
    std::ofstream(dir->file("control.sock")) << "x";
  }
  CHECK(fs::is_empty(parent.path() + "/made"));
}

TEST_CASE("runtime_dir: leftovers of dead daemons are swept, neighbours and strangers stay", "[supervisor]") {
  const testing::TempDir parent;
  fs::create_directories(parent.path() + "/latentd-dead/spool");
  std::ofstream(parent.path() + "/latentd-dead/lock") << "";
  std::ofstream(parent.path() + "/latentd-dead/control.sock") << "";
  fs::create_directories(parent.path() + "/latentd-unlocked");  // without a lock file: being made
  fs::create_directories(parent.path() + "/other-dead");
  std::ofstream(parent.path() + "/other-dead/lock") << "";
  auto neighbour = RuntimeDir::create(parent.path());
  REQUIRE(neighbour.ok());
  CHECK(!fs::exists(parent.path() + "/latentd-dead"));
  auto second = RuntimeDir::create(parent.path());
  REQUIRE(second.ok());
  CHECK(fs::exists(neighbour->path()));
  CHECK(fs::exists(parent.path() + "/latentd-unlocked"));
  CHECK(fs::exists(parent.path() + "/other-dead"));
  CHECK(parent.entries() == 4);
}

TEST_CASE("runtime_dir: a link is not followed", "[supervisor]") {
  const testing::TempDir parent;
  const testing::TempDir target;
  std::ofstream(target.path() + "/lock") << "";
  fs::create_directory_symlink(target.path(), parent.path() + "/latentd-link");
  auto dir = RuntimeDir::create(parent.path());
  REQUIRE(dir.ok());
  CHECK(fs::exists(target.path() + "/lock"));
}

TEST_CASE("runtime_dir: a folder that is too long for sockets, or cannot be made, is refused by name", "[supervisor]") {
  const testing::TempDir parent;
  const auto too_long = RuntimeDir::create(parent.path() + "/" + std::string(80, 'x'));
  CHECK(too_long.status().code() == absl::StatusCode::kInvalidArgument);
  CHECK(messageOf(too_long.status()).find("at most") != std::string::npos);
  CHECK(messageOf(RuntimeDir::create("/proc/none").status()).find("/proc/none") != std::string::npos);
}

}  // namespace
}  // namespace latentd::supervisor
