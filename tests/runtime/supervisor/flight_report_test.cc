#include "runtime/supervisor/flight_report.h"

#include "tests/support/catch.h"

namespace latentd::supervisor {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

// Three ranks; 0 and 1 are one process group of two, all three another.
struct Ranks {
  FlightRecorder of(uint32_t rank) const {
    return FlightRecorder::attach(ShmRegion::map(duplicateFd(region.fd()).value(), 1).value(), Rank(rank)).value();
  }
  void begin(uint32_t rank, const std::string& group, uint64_t sequence, int64_t at_ns) const {
    of(rank).begin(operation(group, sequence, at_ns, 0));
  }
  void done(uint32_t rank, const std::string& group, uint64_t sequence) const {
    of(rank).begin(operation(group, sequence, kSecond, kSecond + 2'000'000));
  }
  static Operation operation(const std::string& group, uint64_t sequence, int64_t submitted_ns, int64_t done_ns) {
    return {.kind = "all_reduce",
            .group = group,
            .members = group == "cfg" ? uint64_t{3} : uint64_t{7},
            .sequence = sequence,
            .run = 7,
            .dtype = DType::kFloat32,
            .shape = {2, 3},
            .bytes_sent = 12,
            .submitted_ns = submitted_ns,
            .done_ns = done_ns};
  }
  std::string verdict() const { return verdictOf(of(0), 10 * kSecond); }

  const ShmRegion region = FlightRecorder::createRegion(3).value();
};

TEST_CASE("flight report: nobody is blamed while nobody waits", "[supervisor]") {
  const Ranks ranks;
  CHECK(ranks.verdict().empty());
  ranks.done(0, "world", 1);
  ranks.done(1, "world", 1);
  CHECK(ranks.verdict().empty());
}

TEST_CASE("flight report: the ranks that have not begun what others wait in are named", "[supervisor]") {
  const Ranks ranks;
  for (const uint32_t rank : {0, 1, 2})
    ranks.done(rank, "world", 1);
  ranks.begin(1, "world", 2, 7 * kSecond);
  CHECK(ranks.verdict() == "rank 1 waits in all_reduce 2 of world for 3.00 s, which ranks 0, 2 have not begun");
  ranks.begin(2, "world", 2, 8 * kSecond);
  CHECK(ranks.verdict() == "ranks 1, 2 wait in all_reduce 2 of world for 3.00 s, which rank 0 has not begun");
  ranks.begin(0, "world", 2, 9 * kSecond);
  CHECK(ranks.verdict() ==
        "ranks 0, 1, 2 wait in all_reduce 2 of world for 3.00 s, which every rank of it has begun and none has "
        "finished; rank 0 began it last, 2.000 s later");
}

TEST_CASE("flight report: who has not finished what others have is behind, not a victim", "[supervisor]") {
  for (const bool kept : {true, false}) {
    const Ranks ranks;
    ranks.begin(0, "world", 1, 6 * kSecond);
    for (const uint32_t rank : {1, 2}) {
      ranks.done(rank, "world", 1);
      // So many that the first is no longer kept.
      for (uint64_t later = 1; !kept && later <= FlightRecorder::kOperations; ++later)
        ranks.done(rank, "world", 1 + later);
    }
    ranks.begin(1, "world", 100, 8 * kSecond);  // it waits for rank 0
    CHECK(ranks.verdict() == "rank 0 has not finished all_reduce 1 of world in 4.00 s, which ranks 1, 2 have");
  }
}

TEST_CASE("flight report: who is no member of a process group is not blamed, and the longest wait counts",
          "[supervisor]") {
  const Ranks ranks;
  ranks.begin(0, "cfg", 1, 6 * kSecond);
  ranks.begin(2, "world", 1, 8 * kSecond);
  CHECK(ranks.verdict() == "rank 0 waits in all_reduce 1 of cfg for 4.00 s, which rank 1 has not begun");
}

TEST_CASE("flight report: who waits for others itself is not blamed", "[supervisor]") {
  const Ranks ranks;
  ranks.begin(0, "cfg", 5, 6 * kSecond);
  ranks.done(1, "cfg", 4);
  ranks.done(1, "world", 1);
  ranks.begin(1, "world", 2, 7 * kSecond);
  ranks.done(0, "world", 2);
  SECTION("of one that has not begun") {
    ranks.done(2, "world", 1);
    CHECK(ranks.verdict() == "rank 1 waits in all_reduce 2 of world for 3.00 s, which rank 2 has not begun");
  }
  SECTION("of one that has not finished what others have") {
    ranks.begin(2, "world", 1, 6 * kSecond);
    CHECK(ranks.verdict() == "rank 2 has not finished all_reduce 1 of world in 4.00 s, which ranks 0, 1 have");
  }
}

TEST_CASE("flight report: the log of a failure is bounded", "[supervisor]") {
  const Ranks ranks;
  for (uint64_t sequence = 1; sequence <= 5; ++sequence)
    ranks.done(0, "world", sequence);
  ranks.begin(0, "world", 6, 9 * kSecond);
  const std::vector<std::string> lines = reportLines(ranks.of(0), 2, 10 * kSecond);
  REQUIRE(lines.size() == 4);
  CHECK(lines[0] == "rank 0 waits in all_reduce 6 of world for 1.00 s, which ranks 1, 2 have not begun");
  CHECK(
      lines[1] ==
      "rank 0: 6 operations; all_reduce 5 of world, float32 [2, 3], took 2.000 ms; all_reduce 6 of world, float32 [2, "
      "3], under way for 1.00 s");
  CHECK(lines[2] == "rank 1: 0 operations");
}

TEST_CASE("flight report: the API has all that is kept", "[supervisor]") {
  const Ranks ranks;
  ranks.done(1, "cfg", 1);
  ranks.begin(1, "cfg", 2, 9 * kSecond);
  v1::GroupRecord record;
  fill(ranks.of(0), 10 * kSecond, record);
  REQUIRE(record.ranks_size() == 3);
  CHECK(record.verdict().find("rank 1 waits") == 0);
  CHECK(record.ranks(0).recent().empty());
  CHECK(record.ranks(1).operations() == 2);
  CHECK(record.ranks(1).bytes_sent() == 24);
  const v1::MeshOperation& last = record.ranks(1).recent(1);
  CHECK(last.kind() == "all_reduce");
  CHECK(last.process_group() == "cfg");
  CHECK(last.sequence() == 2);
  CHECK(last.run() == 7);
  CHECK(last.dtype() == v1::DTYPE_FLOAT32);
  CHECK(last.shape_size() == 2);
  CHECK(last.done_ns() == 0);
}

}  // namespace
}  // namespace latentd::supervisor
