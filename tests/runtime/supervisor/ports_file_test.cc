#include "runtime/supervisor/ports_file.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "tests/support/catch.h"
#include "tests/support/temp_dir.h"

namespace latentd::supervisor {
namespace {

namespace fs = std::filesystem;

std::string textOf(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

}  // namespace

TEST_CASE("ports_file: there while it serves, and nothing of a former daemon before", "[supervisor]") {
  const testing::TempDir folder;
  const std::string path = folder.path() + "/ports";
  std::ofstream(path) << "grpc=stale";
  {
    auto file = PortsFile::create(path);
    REQUIRE(file.ok());
    CHECK(!fs::exists(path));
    REQUIRE(file->publish("127.0.0.1:1", "127.0.0.1:2").ok());
    CHECK(textOf(path) == "grpc=127.0.0.1:1\nhttp=127.0.0.1:2\n");
  }
  CHECK(fs::is_empty(folder.path()));
}

TEST_CASE("ports_file: a place that cannot be written is an error before anything starts", "[supervisor]") {
  const testing::TempDir folder;
  for (const std::string& path : {folder.path() + "/none/ports", folder.path(), std::string("/proc/ports")}) {
    const auto file = PortsFile::create(path);
    REQUIRE(!file.ok());
    CHECK(messageOf(file.status()).find(path) != std::string::npos);
  }
  CHECK(PortsFile::create("").ok());
}

TEST_CASE("ports_file: a daemon that runs keeps its file, before and after it is written", "[supervisor]") {
  const testing::TempDir folder;
  const std::string path = folder.path() + "/ports";
  {
    auto first = PortsFile::create(path);
    REQUIRE(first.ok());
    CHECK(PortsFile::create(path).status().code() == absl::StatusCode::kFailedPrecondition);
    REQUIRE(first->publish("127.0.0.1:1", "127.0.0.1:2").ok());
    const Status refused = PortsFile::create(path).status();
    CHECK(messageOf(refused) ==
          "the ports file " + path + " is that of another daemon, which runs: give this one another");
    CHECK(textOf(path).starts_with("grpc=127.0.0.1:1\n"));
  }
  CHECK(PortsFile::create(path).ok());
}

}  // namespace latentd::supervisor
