#include "runtime/media/spool.h"

#include <sys/stat.h>
#include <unistd.h>

#include "tests/runtime/media/temp_dir.h"
#include "tests/support/catch.h"
#include "tests/support/manual_clock.h"

namespace latentd::media {
namespace {

using latentd::testing::ManualClock;
using Names = std::vector<std::string>;

struct Fixture {
  TempDir dir;
  ManualClock clock;
  std::string spool_dir = dir.file("spool");

  std::unique_ptr<Spool> open(uint64_t bytes_max = 1000) {
    auto spool = Spool::open({spool_dir, bytes_max, std::chrono::minutes(10)}, clock);
    REQUIRE(spool.ok());
    return *std::move(spool);
  }
};

Status put(Spool& spool, const JobId& job, size_t bytes, uint64_t announced = 0) {
  LATENTD_ASSIGN_OR_RETURN(SpoolFile file, spool.create(job, "rgb", announced));
  REQUIRE(::ftruncate(file.fd(), static_cast<off_t>(bytes)) == 0);
  return spool.commit(std::move(file)).status();
}

}  // namespace

TEST_CASE("spool: a private folder, a partial file, a result", "[media][spool]") {
  Fixture fixture;
  const auto spool = fixture.open();
  struct stat info {};
  REQUIRE(::stat(fixture.spool_dir.c_str(), &info) == 0);
  CHECK((info.st_mode & 0777) == 0700);

  StatusOr<SpoolFile> file = spool->create("job-1", "mp4", 0);
  REQUIRE(file.ok());
  CHECK(namesIn(fixture.spool_dir) == Names{"latentd-job-1.mp4.partial"});
  REQUIRE(::write(file->fd(), "abc", 3) == 3);
  const std::string path = file->path();
  const StatusOr<uint64_t> bytes = spool->commit(*std::move(file));
  REQUIRE(bytes.ok());
  CHECK(*bytes == 3);
  CHECK(readFile(path) == "abc");
  CHECK(namesIn(fixture.spool_dir) == Names{"latentd-job-1.mp4"});
  REQUIRE(::stat(path.c_str(), &info) == 0);
  CHECK((info.st_mode & 0777) == 0600);
  CHECK(spool->bytes() == 3);

  spool->remove("job-1");
  spool->remove("job-1");
  CHECK(namesIn(fixture.spool_dir).empty());
  CHECK(spool->bytes() == 0);
}

TEST_CASE("spool: a file that is given up leaves nothing and gives its room back", "[media][spool]") {
  Fixture fixture;
  const auto spool = fixture.open(1000);
  {
    const StatusOr<SpoolFile> file = spool->create("a", "rgb", 900);
    REQUIRE(file.ok());
    const Status second = spool->create("b", "rgb", 200).status();
    CHECK(absl::IsResourceExhausted(second));
    CHECK(messageOf(second) ==
          "spool: no room for 200 bytes beside 900 that running jobs need; spool.bytes_max is 1000");
  }
  CHECK(namesIn(fixture.spool_dir).empty());
  CHECK(spool->create("b", "rgb", 200).ok());
}

TEST_CASE("spool: the oldest results make room, and no others", "[media][spool]") {
  Fixture fixture;
  const auto spool = fixture.open(1000);
  REQUIRE(put(*spool, "a", 400).ok());
  REQUIRE(put(*spool, "b", 300).ok());
  REQUIRE(put(*spool, "c", 300, 300).ok());  // exactly full
  CHECK(namesIn(fixture.spool_dir) == Names{"latentd-a.rgb", "latentd-b.rgb", "latentd-c.rgb"});
  REQUIRE(put(*spool, "d", 500).ok());
  CHECK(namesIn(fixture.spool_dir) == Names{"latentd-c.rgb", "latentd-d.rgb"});
  CHECK(spool->bytes() == 800);
}

TEST_CASE("spool: a result above the bound is refused, announced or not", "[media][spool]") {
  Fixture fixture;
  const auto spool = fixture.open(1000);
  REQUIRE(put(*spool, "a", 400).ok());
  for (const uint64_t announced : {uint64_t{0}, uint64_t{1001}}) {
    const Status status = put(*spool, "b", 1001, announced);
    CHECK(absl::IsResourceExhausted(status));
    CHECK(messageOf(status) ==
          "spool: a result of 1001 bytes is above spool.bytes_max (1000); ask for fewer or smaller frames");
  }
  CHECK(namesIn(fixture.spool_dir) == Names{"latentd-a.rgb"});
  REQUIRE(put(*spool, "c", 600, 600).ok());  // nothing of b counts any more
  CHECK(spool->bytes() == 1000);
}

TEST_CASE("spool: results go when their time is over", "[media][spool]") {
  Fixture fixture;
  const auto spool = fixture.open(1000);
  REQUIRE(put(*spool, "a", 1).ok());
  fixture.clock.advance(std::chrono::minutes(4));
  REQUIRE(put(*spool, "b", 1).ok());
  CHECK(spool->expire() == fixture.clock.now() + std::chrono::minutes(6));
  fixture.clock.advance(std::chrono::minutes(6) - std::chrono::nanoseconds(1));
  spool->expire();
  CHECK(namesIn(fixture.spool_dir) == Names{"latentd-a.rgb", "latentd-b.rgb"});
  fixture.clock.advance(std::chrono::nanoseconds(1));
  CHECK(spool->expire() == fixture.clock.now() + std::chrono::minutes(4));
  CHECK(namesIn(fixture.spool_dir) == Names{"latentd-b.rgb"});
  fixture.clock.advance(std::chrono::minutes(4));
  CHECK_FALSE(spool->expire().has_value());
  CHECK(namesIn(fixture.spool_dir).empty());
}

TEST_CASE("spool: a start removes what an earlier daemon left, and nothing else", "[media][spool]") {
  Fixture fixture;
  std::filesystem::create_directory(fixture.spool_dir);
  for (const char* name : {"latentd-a.mp4", "latentd-b.npy.partial", "holiday.mp4"}) {
    std::ofstream(fixture.spool_dir + "/" + name) << "x";
  }
  const auto spool = fixture.open();
  CHECK(namesIn(fixture.spool_dir) == Names{"holiday.mp4"});
}

TEST_CASE("spool: two daemons do not share a folder", "[media][spool]") {
  Fixture fixture;
  auto first = fixture.open();
  REQUIRE(put(*first, "a", 1).ok());
  const Status second = Spool::open({fixture.spool_dir, 1000, std::chrono::minutes(1)}, fixture.clock).status();
  CHECK(absl::IsFailedPrecondition(second));
  CHECK(messageOf(second) ==
        "spool: another latentd uses " + fixture.spool_dir + "; give each daemon a spool.dir of its own");
  CHECK(namesIn(fixture.spool_dir) == Names{"latentd-a.rgb"});
  first.reset();
  fixture.open();
}

TEST_CASE("spool: what cannot be used is named", "[media][spool]") {
  Fixture fixture;
  const auto open = [&](const std::string& dir) {
    return Spool::open({dir, 1000, std::chrono::minutes(1)}, fixture.clock).status();
  };
  CHECK(messageOf(open(fixture.dir.file("a/b"))) ==
        "spool: make folder " + fixture.dir.file("a/b") + ": No such file or directory");
  std::ofstream(fixture.dir.file("file")) << "x";
  CHECK(messageOf(open(fixture.dir.file("file"))) ==
        "spool: open " + fixture.dir.file("file/.latentd.lock") + ": Not a directory");
  const auto spool = fixture.open();
  for (const std::string& job : {std::string(), std::string("../x"), std::string("a b"), std::string(129, 'a')}) {
    INFO(job);
    CHECK(absl::IsInvalidArgument(spool->create(job, "mp4", 0).status()));
  }
  const StatusOr<SpoolFile> file = spool->create("a", "mp4", 0);
  REQUIRE(file.ok());
  CHECK(absl::IsAlreadyExists(spool->create("a", "mp4", 0).status()));
}

}  // namespace latentd::media
