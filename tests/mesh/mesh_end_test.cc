#include "mesh/mesh_end.h"

#include <fstream>
#include <thread>
#include <vector>

#include "mesh/first_cause.h"
#include "tests/support/catch.h"
#include "tests/support/temp_dir.h"

namespace latentd::mesh {
namespace {

const Status kMemory = absl::ResourceExhaustedError("rank 1: no memory\nfor \"x\"");
const Status kGone = absl::UnavailableError("rank 2: connection closed");

}  // namespace

TEST_CASE("first cause: of several ranks the first one's counts, whole, for all", "[mesh]") {
  const testing::TempDir folder;
  const FirstCause one(folder.file("cause")), other(folder.file("cause"));
  CHECK_FALSE(one.given());
  CHECK(one.give(kMemory) == kMemory);
  CHECK(other.give(kGone) == kMemory);
  CHECK(one.give(kGone) == kMemory);
  CHECK(other.given() == kMemory);
  // Nothing else is left behind.
  CHECK(folder.entries() == 1);
}

TEST_CASE("first cause: many that give at once agree", "[mesh]") {
  for (int round = 0; round < 20; ++round) {
    const testing::TempDir folder;
    std::vector<Status> heard(4);
    std::vector<std::thread> ranks;
    for (size_t rank = 0; rank < heard.size(); ++rank) {
      ranks.emplace_back([&, rank] {
        const Status mine = makeStatus(absl::StatusCode::kInternal, "rank " + std::to_string(rank));
        heard[rank] = FirstCause(folder.file("cause")).give(mine);
      });
    }
    for (std::thread& rank : ranks)
      rank.join();
    for (const Status& status : heard)
      CHECK(status == heard[0]);
  }
}

TEST_CASE("first cause: what is no cause counts as none, and in a folder that is gone a rank's own counts", "[mesh]") {
  const testing::TempDir folder;
  for (const char* const text : {"", "x", "0 fine", "99 unknown"}) {
    std::ofstream(folder.file("cause"), std::ios::trunc) << text;
    CHECK_FALSE(FirstCause(folder.file("cause")).given());
    CHECK(FirstCause(folder.file("cause")).give(kGone) == kGone);
  }
  const FirstCause nowhere("/nonexistent/cause");
  CHECK(nowhere.give(kGone) == kGone);
  CHECK_FALSE(nowhere.given());
}

TEST_CASE("mesh end: connections are closed once, after the cause is given", "[mesh]") {
  const testing::TempDir folder;
  MeshEnd end(folder.file("cause"));
  int closed = 0;
  end.onEnd([&] {
    ++closed;
    CHECK(FirstCause(folder.file("cause")).given() == kMemory);
  });
  CHECK_FALSE(end.cause());
  CHECK(end.end(kMemory) == kMemory);
  CHECK(end.end(kGone) == kMemory);
  CHECK(end.cause() == kMemory);
  CHECK(closed == 1);
}

TEST_CASE("mesh end: a peer's cause counts where it came first, and is found without a failure here", "[mesh]") {
  const testing::TempDir folder;
  MeshEnd one(folder.file("cause")), other(folder.file("cause"));
  int closed = 0;
  other.onEnd([&] { ++closed; });
  CHECK_FALSE(other.cause());
  REQUIRE(FirstCause(folder.file("cause")).give(kMemory) == kMemory);
  CHECK(one.end(kGone) == kMemory);
  CHECK(one.cause() == kMemory);
  CHECK(other.cause() == kMemory);
  CHECK(closed == 1);
}

}  // namespace latentd::mesh
