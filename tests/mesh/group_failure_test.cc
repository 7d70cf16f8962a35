#include <signal.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <future>
#include <map>
#include <random>
#include <sstream>
#include <thread>

#include <ATen/ops/zeros.h>

#include "mesh/collectives.h"
#include "mesh/communication_error.h"
#include "mesh/process_group.h"
#include "tests/mesh/outcome.h"
#include "tests/mesh/ranks.h"
#include "tests/support/catch.h"

namespace latentd::mesh {
namespace {

using std::chrono::milliseconds;
using testing::ChildRank;
using testing::outcomeOf;
using testing::Ranks;

// Of the tests where nobody waits for a deadline: well above what a loaded machine takes to notice anything.
constexpr milliseconds kLong{60'000};
constexpr milliseconds kAtOnce{20'000};

const std::vector<std::string>& operationKinds() {
  static const std::vector<std::string> kinds{"all_gather", "all_reduce", "all_to_all", "broadcast", "exchange"};
  return kinds;
}

const std::vector<std::string>& differences() {
  static const std::vector<std::string> all{"kind", "shape", "dtype", "run"};
  return all;
}

// One operation of the group, submitted and not waited for. Too large to be sent in one piece.
Pending submit(ProcessGroup& group, const std::string& kind, int64_t rows = 1 << 17,
               at::ScalarType dtype = at::kFloat) {
  const int64_t size = group.size();
  const at::Tensor input = at::zeros({size * rows}, dtype);
  if (kind == "all_gather") return group.allGather(at::zeros({size * size * rows}, dtype), input);
  if (kind == "all_reduce") return group.allReduceSum(input);
  if (kind == "all_to_all") return group.allToAll(at::zeros({size * rows}, dtype), input);
  if (kind == "broadcast") return group.broadcast(input, 0);
  std::vector<PeerTensor> sends, receives;
  for (int peer = 0; peer < size; ++peer) {
    if (peer == group.rank()) continue;
    sends.push_back({peer, input});
    receives.push_back({peer, at::zeros({size * rows}, dtype)});
  }
  return group.exchange(std::move(sends), std::move(receives));
}

// Operations without end; how it ended, and the same once more.
std::string operateUntilFailure(ProcessGroup& group, const std::string& kind) {
  std::string outcome;
  while (outcome.empty() || outcome == "OK")
    outcome = outcomeOf([&] { submit(group, kind).wait(); });
  CHECK(outcomeOf([&] { submit(group, "all_reduce"); }) == outcome);
  return outcome;
}

}  // namespace

// ---- a rank dies --------------------------------------------------------------------------------------------------

// Two are left after one round of each kind of operation.
constexpr uint32_t kLosingRanks = 7;

// In each round the last rank of the mesh is killed, and the others go on as a smaller one.
TEST_CASE("rank of groups that lose one after another", "[.][child]") {
  ChildRank rank(ChildRank::Start::kNothing);
  uint32_t ranks = kLosingRanks;
  for (const std::string& kind : operationKinds()) {
    rank.remake({.ulysses = ranks});
    ProcessGroup& group = rank.mesh().world();
    submit(group, "all_gather").wait();  // which needs all of them: nobody dies while others still meet
    if (rank.rank() == --ranks) rank.stopHere();
    rank.send(operateUntilFailure(group, kind));
    // What ended with peers gone is let go of at once.
    const auto begin = std::chrono::steady_clock::now();
    rank.leave();
    CHECK(std::chrono::steady_clock::now() - begin < kAtOnce);
  }
}

TEST_CASE("group failure: a killed rank fails every kind of operation of the others at once [M3]", "[mesh]") {
  uint32_t left = kLosingRanks;
  Ranks ranks("rank of groups that lose one after another",
              {.degrees = {.ulysses = left}, .timeout = kLong, .recorder = false});
  for (const std::string& kind : operationKinds()) {
    INFO(kind << " of " << left << " ranks");
    const auto begin = std::chrono::steady_clock::now();
    REQUIRE(ranks.next(--left) == "here");
    ranks.kill(left);
    const std::string outcome = ranks.next(0);
    CHECK(outcome.starts_with("UNAVAILABLE rank "));
    CHECK(outcome.find("group ulysses") != std::string::npos);
    CHECK(outcome.find(kind) != std::string::npos);
    for (uint32_t rank = 1; rank < left; ++rank)
      CHECK(ranks.next(rank) == outcome);  // one cause for all
    CHECK(std::chrono::steady_clock::now() - begin < kLong / 2);
  }
  ranks.requireSuccess();
}

TEST_CASE("rank that is free of operations when another dies", "[.][child]") {
  ChildRank rank;
  allGatherInt(rank.mesh().world(), 1, at::kCPU);
  rank.stopHere();
  const std::string outcome = outcomeOf([&] { allGatherInt(rank.mesh().world(), 1, at::kCPU); });
  CHECK(outcome.starts_with("UNAVAILABLE "));
}

TEST_CASE("group failure: an operation after a rank died fails", "[mesh]") {
  Ranks ranks("rank that is free of operations when another dies", {.degrees = {.tp = 2}, .timeout = kLong});
  REQUIRE(ranks.next(0) == "here");
  REQUIRE(ranks.next(1) == "here");
  ranks.kill(1);
  ranks.send(0, "go");
  ranks.requireSuccess();
}

// ---- a rank hangs -------------------------------------------------------------------------------------------------

TEST_CASE("rank that measures how long hangs last", "[.][child]") {
  ChildRank rank(ChildRank::Start::kNothing);
  for (const std::string& kind : operationKinds()) {
    rank.remake({.ulysses = 3});
    ProcessGroup& group = rank.mesh().world();
    submit(group, kind).wait();
    rank.stopHere();
    const auto begin = std::chrono::steady_clock::now();
    const std::string outcome = operateUntilFailure(group, kind);
    const auto lasted = std::chrono::duration_cast<milliseconds>(std::chrono::steady_clock::now() - begin);
    rank.send(outcome);
    rank.send(std::to_string(lasted.count()));
    rank.next();  // all have ended, the stopped one too
  }
}

TEST_CASE("group failure: a stopped rank fails the operations of the others at the deadline [M4]", "[mesh]") {
  constexpr milliseconds kTimeout{3'000};  // in which a busy machine's ranks have to meet, too
  Ranks ranks("rank that measures how long hangs last",
              {.degrees = {.ulysses = 3}, .timeout = kTimeout, .recorder = false});
  for (const std::string& kind : operationKinds()) {
    INFO(kind);
    for (size_t rank = 0; rank < 3; ++rank)
      REQUIRE(ranks.next(rank) == "here");
    ranks.signal(2, SIGSTOP);
    for (size_t rank = 0; rank < 3; ++rank)
      ranks.send(rank, "go");
    const std::string outcome = ranks.next(0);
    CHECK(outcome.starts_with("DEADLINE_EXCEEDED rank "));
    CHECK(outcome.find("group ulysses") != std::string::npos);
    CHECK(outcome.find(kind) != std::string::npos);
    CHECK(outcome.ends_with("not done within 3000 ms"));
    CHECK(ranks.next(1) == outcome);
    milliseconds longest{0};
    for (size_t rank = 0; rank < 2; ++rank)
      longest = std::max(longest, milliseconds(std::stoll(ranks.next(rank))));
    // Of the rank that began to wait first, and whose deadline it was.
    CHECK(longest >= kTimeout);
    CHECK(longest < kTimeout + kAtOnce);
    // The stopped rank finds out when it goes on.
    ranks.signal(2, SIGCONT);
    CHECK(ranks.next(2) == outcome);
    ranks.next(2);
    for (size_t rank = 0; rank < 3; ++rank)
      ranks.send(rank, "go");
  }
  ranks.requireSuccess();
}

// ---- a rank gives up ----------------------------------------------------------------------------------------------

TEST_CASE("rank that is freed by another", "[.][child]") {
  ChildRank rank(ChildRank::Start::kNothing);
  for (const std::string& kind : operationKinds()) {
    rank.remake({.cfg = 2, .ulysses = 2});
    Mesh& mesh = rank.mesh();
    submit(mesh.world(), "all_gather").wait();
    if (rank.rank() == 0) {
      rank.stopHere();
      mesh.abort(absl::ResourceExhaustedError("rank 0 has no memory left"));
      mesh.abort(absl::InternalError("a later cause"));
      rank.send(outcomeOf([&] { submit(mesh.group(MeshDim::kCfg), kind); }));
    } else {
      // Ranks 1 and 2 wait in groups with rank 0, and rank 3 waits for rank 2: the abort reaches it through that.
      ProcessGroup& group = mesh.group(rank.rank() == 2 ? MeshDim::kCfg : MeshDim::kUlysses);
      rank.send("here");
      rank.send(outcomeOf([&] { submit(group, kind).wait(); }));
    }
    CHECK(outcomeOf([&] { submit(mesh.world(), "all_reduce"); }) == "RESOURCE_EXHAUSTED rank 0 has no memory left");
  }
}

TEST_CASE("group failure: one rank's abort frees all others, with its cause [M2]", "[mesh]") {
  Ranks ranks("rank that is freed by another",
              {.degrees = {.cfg = 2, .ulysses = 2}, .timeout = kLong, .recorder = false});
  for (const std::string& kind : operationKinds()) {
    INFO(kind);
    for (size_t rank = 0; rank < 4; ++rank)
      REQUIRE(ranks.next(rank) == "here");
    ranks.send(0, "go");
    for (size_t rank = 0; rank < 4; ++rank)
      CHECK(ranks.next(rank) == "RESOURCE_EXHAUSTED rank 0 has no memory left");
  }
  ranks.requireSuccess();
}

TEST_CASE("rank that aborts from another thread", "[.][child]") {
  ChildRank rank(ChildRank::Start::kNothing);
  for (const std::string& kind : operationKinds()) {
    rank.remake({.tp = 2});
    Mesh& mesh = rank.mesh();
    rank.stopHere();  // the other one has met this one too
    if (rank.rank() == 1) {
      rank.stopHere();
      continue;
    }
    std::promise<void> waiting;
    std::thread aborter([&] {
      waiting.get_future().wait();
      mesh.abort(absl::CancelledError("told to stop"));
    });
    const std::string outcome = outcomeOf([&] {
      Pending pending = submit(mesh.world(), kind);
      waiting.set_value();
      pending.wait();
    });
    aborter.join();
    CHECK(outcome == "CANCELLED told to stop");
    rank.send("freed");
  }
}

TEST_CASE("group failure: an abort frees the executor of its own rank too", "[mesh]") {
  Ranks ranks("rank that aborts from another thread", {.degrees = {.tp = 2}, .timeout = kLong, .recorder = false});
  for (const std::string& kind : operationKinds()) {
    INFO(kind);
    ranks.meet();
    REQUIRE(ranks.next(1) == "here");
    REQUIRE(ranks.next(0) == "freed");
    ranks.send(1, "go");
  }
  ranks.requireSuccess();
}

// ---- ranks that do not do the same ----------------------------------------------------------------------------------

TEST_CASE("rank that does something else", "[.][child]") {
  ChildRank rank(ChildRank::Start::kNothing);
  const bool odd = rank.rank() == 1;
  for (const std::string& what : differences()) {
    // Each mesh has its own name for the group, and the recorder is the same.
    rank.remake(what == "kind"    ? MeshDegrees{.tp = 3}
                : what == "shape" ? MeshDegrees{.cfg = 3}
                : what == "dtype" ? MeshDegrees{.pp = 3}
                                  : MeshDegrees{.ring = 3});
    ProcessGroup& group = rank.mesh().world();
    submit(group, "all_reduce", 16).wait();
    // One command ahead, and doing the same in it.
    if (what == "run") rank.mesh().beginRun(odd ? 2 : 1);
    const std::string kind = odd && what == "kind" ? "all_to_all" : "all_gather";
    const int64_t rows = odd && what == "shape" ? 17 : 16;
    const at::ScalarType dtype = odd && what == "dtype" ? at::kInt : at::kFloat;
    rank.send(outcomeOf([&] { submit(group, kind, rows, dtype).wait(); }));
  }
}

TEST_CASE("group failure: ranks that do not do the same are told so [M5] [M9]", "[mesh]") {
  const bool by_message = GENERATE(false, true);  // or by the recorder
  Ranks ranks("rank that does something else",
              {.degrees = {.dp = 3}, .timeout = kLong, .recorder = !by_message, .verify = by_message});
  for (const std::string& what : differences()) {
    INFO(what << (by_message ? " by message" : " by the recorder"));
    const std::string outcome = ranks.next(0);
    INFO(outcome);
    CHECK(outcome.starts_with("INTERNAL operation 2 of process group "));
    CHECK(outcome.find("differs between its ranks: ") != std::string::npos);
    const std::string odd = what == "kind"    ? "rank 1 all_to_all of float32 [48]"
                            : what == "shape" ? "rank 1 all_gather of float32 [51]"
                            : what == "dtype" ? "rank 1 all_gather of int32 [48]"
                                              : "rank 1 all_gather of float32 [48] in run 2";
    CHECK(outcome.find(odd) != std::string::npos);
    const std::string does = std::string(" all_gather of float32 [48]") + (what == "run" ? " in run 1" : "");
    CHECK((outcome.find("rank 0" + does) != std::string::npos || outcome.find("rank 2" + does) != std::string::npos));
    CHECK(ranks.next(1) == outcome);
    CHECK(ranks.next(2) == outcome);
  }
  ranks.requireSuccess();
}

TEST_CASE("rank that sends something else", "[.][child]") {
  ChildRank rank;
  const bool odd = rank.rank() == 1;
  const at::ScalarType dtype = odd && rank.setup() == "dtype" ? at::kInt : at::kFloat;
  const int64_t length = odd && rank.setup() == "length" ? 9 : 8;
  const int other = odd ? 0 : 1;
  rank.send(outcomeOf([&] {
    rank.mesh().world().exchange({{other, at::zeros({length}, dtype)}}, {{other, at::zeros({length}, dtype)}}).wait();
  }));
}

TEST_CASE("group failure: messages of another type or length are told apart where ranks compare", "[mesh]") {
  const std::string what = GENERATE(as<std::string>(), "dtype", "length");
  Ranks ranks("rank that sends something else",
              {.degrees = {.tp = 2}, .setup = what, .timeout = kLong, .verify = true});
  const std::string outcome = ranks.next(0);
  INFO(outcome);
  CHECK(outcome.starts_with("INTERNAL an exchange differs between its ranks: rank "));
  CHECK(outcome.find(what == "dtype" ? "8 elements of int32" : "9 elements of float32") != std::string::npos);
  CHECK(outcome.find("8 elements of float32") != std::string::npos);
  CHECK(ranks.next(1) == outcome);
  ranks.requireSuccess();
}

TEST_CASE("group failure: a message longer than its receive ends at the deadline, not the process [M8]", "[mesh]") {
  Ranks ranks("rank that sends something else",
              {.degrees = {.tp = 2}, .setup = "length", .timeout = milliseconds(3'000)});
  const std::string outcome = ranks.next(0);
  CHECK(outcome.starts_with("DEADLINE_EXCEEDED "));
  CHECK(ranks.next(1) == outcome);
  ranks.requireSuccess();
}

// ---- again and again ------------------------------------------------------------------------------------------------

TEST_CASE("rank that does operations of all kinds", "[.][child]") {
  ChildRank rank;
  uint32_t seed = 0;
  std::istringstream(rank.setup()) >> seed;
  std::mt19937 random(seed);  // the same on every rank
  rank.send("here");
  std::string outcome = "OK";
  while (outcome == "OK") {
    const std::string kind = operationKinds()[random() % operationKinds().size()];
    const std::vector<ProcessGroup*> groups{&rank.mesh().world(), &rank.mesh().group(MeshDim::kCfg),
                                            &rank.mesh().sequence()};
    ProcessGroup& group = *groups[random() % groups.size()];
    const int64_t rows = 1 << (random() % 18);
    outcome = outcomeOf([&] { submit(group, kind, rows).wait(); });
  }
  rank.send(outcome);
  rank.leave();
}

namespace {

void killAtRandom(uint32_t seed) {
  INFO("seed " << seed);
  std::mt19937 random(seed);
  Ranks ranks("rank that does operations of all kinds",
              {.degrees = {.cfg = 2, .ulysses = 2}, .setup = std::to_string(seed), .timeout = kLong});
  for (size_t rank = 0; rank < 4; ++rank)
    REQUIRE(ranks.next(rank) == "here");
  const size_t victim = random() % 4;
  std::this_thread::sleep_for(std::chrono::microseconds(random() % 200'000));
  const auto begin = std::chrono::steady_clock::now();
  ranks.kill(victim);
  std::map<std::string, int> outcomes;
  for (size_t rank = 0; rank < 4; ++rank)
    if (rank != victim) ++outcomes[ranks.next(rank)];
  REQUIRE(outcomes.size() == 1);
  CHECK(outcomes.begin()->first.starts_with("UNAVAILABLE rank "));
  CHECK(std::chrono::steady_clock::now() - begin < kAtOnce);
  ranks.requireSuccess();
}

}  // namespace

TEST_CASE("group failure: a rank killed at a random moment", "[mesh]") {
  for (const uint32_t seed : {1u, 2u})
    killAtRandom(seed);
}

TEST_CASE("group failure: 50 ranks killed at random moments in a row", "[.][long]") {
  const uint32_t first = std::random_device{}();
  for (uint32_t i = 0; i < 50; ++i)
    killAtRandom(first + i);
}

}  // namespace latentd::mesh
