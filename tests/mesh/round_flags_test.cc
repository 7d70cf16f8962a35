#include "mesh/round_flags.h"

#include <limits>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/catch.h"

namespace latentd::mesh {
namespace {

using Mark = RoundFlags::Mark;

// A group of two ranks in this process, each with mappings of its own.
struct Pair {
  Pair() : first(make(0)), second(make(1)) {}

  static ShmRegion page() {
    auto made = ShmRegion::create("latentd-test-flags", RoundFlags::pageBytes(2));
    REQUIRE(made.ok());
    RoundFlags::initialize(*made);
    return *std::move(made);
  }

  RoundFlags make(size_t rank) const {
    std::vector<ShmRegion> mapped;
    for (const ShmRegion* page : {&page0, &page1}) {
      auto fd = duplicateFd(page->fd());
      REQUIRE(fd.ok());
      auto region = ShmRegion::map(*std::move(fd), RoundFlags::pageBytes(2));
      REQUIRE(region.ok());
      mapped.push_back(*std::move(region));
    }
    auto flags = RoundFlags::make(rank, {Rank(4), Rank(6)}, std::move(mapped));
    REQUIRE(flags.ok());
    return *std::move(flags);
  }

  const ShmRegion page0 = page();
  const ShmRegion page1 = page();
  RoundFlags first;
  RoundFlags second;
};

std::string failureOf(RoundFlags& flags, Mark mark, uint32_t round) {
  try {
    flags.await(mark, round);
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "";
}

TEST_CASE("round flags: who waits goes on when all peers have announced the round, or a later one", "[mesh]") {
  Pair ranks;
  uint32_t memory = 0;  // not atomic: the flags order it [M10]
  std::thread peer([&] {
    for (uint32_t round = 1; round <= 2000; ++round) {
      ranks.second.announce(Mark::kFree, round);
      ranks.second.await(Mark::kWritten, round);
      CHECK(memory == round);
    }
  });
  for (uint32_t round = 1; round <= 2000; ++round) {
    ranks.first.await(Mark::kFree, round);
    memory = round;
    ranks.first.announce(Mark::kWritten, round);
  }
  peer.join();
  ranks.first.await(Mark::kFree, 1);
}

TEST_CASE("round flags: rounds pass 2^32", "[mesh]") {
  Pair ranks;
  constexpr uint32_t kLast = std::numeric_limits<uint32_t>::max();
  ranks.second.announce(Mark::kFree, kLast - 1);
  std::thread peer([&] { ranks.second.announce(Mark::kFree, kLast + 2); });
  ranks.first.await(Mark::kFree, kLast + 1);  // not reached by kLast - 1
  ranks.first.await(Mark::kFree, kLast);
  peer.join();
}

TEST_CASE("round flags: an end wakes this rank and its peers", "[mesh]") {
  Pair ranks;
  std::string here, there;
  std::thread waiting([&] { here = failureOf(ranks.first, Mark::kFree, 1); });
  std::thread peer([&] { there = failureOf(ranks.second, Mark::kWritten, 2); });
  ranks.first.end();
  waiting.join();
  peer.join();
  CHECK(here == "this rank has ended");
  CHECK(there == "rank 4 has ended");
}

TEST_CASE("round flags: who left is missed by those alone to whom it owes something", "[mesh]") {
  Pair ranks;
  ranks.first.announce(Mark::kWritten, 1);
  std::string there;
  std::thread peer([&] { there = failureOf(ranks.second, Mark::kWritten, 2); });
  ranks.first.leave();
  peer.join();
  CHECK(there == "rank 4 has left");
  CHECK(failureOf(ranks.second, Mark::kWritten, 1).empty());
}

}  // namespace
}  // namespace latentd::mesh
