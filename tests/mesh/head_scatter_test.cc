#include "mesh/head_scatter.h"

#include <fcntl.h>
#include <signal.h>
#include <spdlog/sinks/ostream_sink.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include "mesh/communication_error.h"
#include "mesh/ulysses.h"
#include "runtime/base/log.h"
#include "tests/mesh/heads.h"
#include "tests/mesh/outcome.h"
#include "tests/mesh/random_shares.h"
#include "tests/mesh/random_tensor.h"
#include "tests/mesh/ranks.h"
#include "tests/mesh/topology_list.h"
#include "tests/support/catch.h"
#include "tests/support/contains_text.h"

namespace latentd::mesh {
namespace {

using latentd::testing::containsText;
using std::chrono::milliseconds;
using testing::ChildRank;
using testing::Heads;
using testing::outcomeOf;
using testing::randomInteger;
using testing::randomTensor;
using testing::Ranks;
using testing::scatter;

// Of the tests where nobody waits for a deadline.
constexpr milliseconds kLong{60'000};

// ---- results ------------------------------------------------------------------------------------------------

TEST_CASE("rank scatters random shares", "[.][child]") {
  ChildRank rank(ChildRank::Start::kNothing);
  // Some 20 shares, more than are kept, and some of them again.
  testing::scatterRandomShares(rank, {.rounds = 30, .rows = 1, .head_dim = 4});
}

TEST_CASE("head scatter: direct writes give what the all-to-all gives, for more shares than are kept [M12]", "[mesh]") {
  testing::requireTopologies("rank scatters random shares", {{.ulysses = 2}, {.ulysses = 3}, {.ulysses = 4}},
                             {.setup = "21", .ulysses = ScatterTransport::kDirect});
}

// What rank `from` gives in a round, of each tag.
at::Tensor marked(int round, int tag, int from, int ranks) {
  return at::full({1, 8, ranks, 16}, 100.0 * round + 10 * tag + from);
}

void checkMarked(const at::Tensor& got, int round, int tag, int ranks) {
  for (int from = 0; from < ranks; ++from)
    CHECK(got.narrow(1, 8 * from, 8).eq(100.0 * round + 10 * tag + from).all().item<bool>());
}

// One set of targets for many layers, whose readers are slower than whoever writes the next round.
TEST_CASE("rank reads slowly", "[.][child]") {
  ChildRank rank;
  HeadScatter& heads = rank.mesh().headScatter();
  const auto own = static_cast<int>(rank.rank());
  std::mt19937_64 random(rank.rank());
  for (int round = 1; round <= 150; ++round) {
    heads.begin({1, 8, 3, 16}, at::kFloat);
    PendingHeads value = heads.submit(HeadTag::kValue, marked(round, 0, own, 3));
    std::this_thread::sleep_for(std::chrono::microseconds(randomInteger(0, 1500, random)));  // Q and K are computed
    PendingHeads query = heads.submit(HeadTag::kQuery, marked(round, 1, own, 3));
    PendingHeads key = heads.submit(HeadTag::kKey, marked(round, 2, own, 3));
    const at::Tensor q = query.wait();
    checkMarked(q, round, 1, 3);
    const at::Tensor k = key.wait(), v = value.wait();
    std::this_thread::sleep_for(std::chrono::microseconds(randomInteger(0, 1500, random)));  // an attention
    checkMarked(q, round, 1, 3);
    checkMarked(k, round, 2, 3);
    checkMarked(v, round, 0, 3);
    // What is not written anew in the next round would be seen.
    for (const at::Tensor& read : {q, k, v})
      read.fill_(-1);
  }
  CHECK(heads.direct());
}

TEST_CASE("head scatter: nothing is read before it is there, nor overwritten before it was read [M10]", "[mesh]") {
  Ranks("rank reads slowly", {.degrees = {.ulysses = 3}, .ulysses = ScatterTransport::kDirect}).requireSuccess();
}

// ---- what carries it ----------------------------------------------------------------------------------------

// Shared memory is no longer to be had, beyond a page.
class NoMemory {
 public:
  NoMemory() {
    ::signal(SIGXFSZ, SIG_IGN);
    ::getrlimit(RLIMIT_FSIZE, &before_);
    rlimit limit = before_;
    limit.rlim_cur = 4096;
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~NoMemory() { ::setrlimit(RLIMIT_FSIZE, &before_); }

 private:
  rlimit before_{};
};

Heads zeros(int64_t rows, at::ScalarType dtype = at::kFloat) {
  const at::Tensor share = at::zeros({1, rows, 60, 8}, dtype);  // heads for 2 to 6 ranks
  return {share, share, share};
}

// What this process logs of its mesh from here on, a line each.
class MeshLog {
 public:
  MeshLog() { getLogger("mesh")->sinks().push_back(sink_); }
  ~MeshLog() { std::erase(getLogger("mesh")->sinks(), sink_); }

  size_t lines() const {
    const std::string said = text();
    return static_cast<size_t>(std::count(said.begin(), said.end(), '\n'));
  }
  std::string text() const { return text_.str(); }

 private:
  std::ostringstream text_;
  std::shared_ptr<spdlog::sinks::sink> sink_ = std::make_shared<spdlog::sinks::ostream_sink_st>(text_);
};

TEST_CASE("rank has no memory for a share", "[.][child]") {
  ChildRank rank;
  const MeshLog log;
  HeadScatter& heads = rank.mesh().headScatter();
  scatter(heads, zeros(1));
  CHECK(heads.direct());
  {
    std::optional<NoMemory> limit;
    if (rank.rank() == 1) limit.emplace();
    std::mt19937_64 random(rank.rank());
    const at::Tensor share = randomTensor(zeros(64).value.sizes(), random);
    const at::Tensor got = scatter(heads, {share, share, share}).value;
    CHECK_FALSE(heads.direct());
    CHECK_THAT(messageOf(heads.obstacle()), containsText("rank 1: shared memory \"latentd-ulysses-targets\""));
    CHECK(got.equal(scatterHeads(rank.mesh().group(MeshDim::kUlysses), share).wait()));
  }
  // Others have their targets, the old ones too.
  for (int step = 0; step < 5; ++step) {
    scatter(heads, zeros(64));
    CHECK_FALSE(heads.direct());
    for (const int64_t rows : {1, 65}) {
      scatter(heads, zeros(rows));
      CHECK(heads.direct());
      CHECK(heads.obstacle().ok());
    }
  }
  // Once for the share, whatever the steps, and by one rank for all.
  INFO(log.text());
  CHECK(log.lines() == (rank.rank() == 0 ? 1 : 0));
  if (rank.rank() == 0) {
    CHECK_THAT(log.text(), containsText("heads of float32 [1, 64, 60, 8] a rank are scattered by c10d and not by shm, "
                                        "which takes 368640 bytes of each: rank 1: shared memory "
                                        "\"latentd-ulysses-targets\""));
  }
  // After four others it is tried anew, and there is memory by now.
  for (int64_t rows = 2; rows <= 5; ++rows)
    scatter(heads, zeros(rows));
  scatter(heads, zeros(64));
  CHECK(heads.direct());
}

TEST_CASE("head scatter: where one rank has no memory for a share, all take the all-to-all for it [M11]", "[mesh]") {
  Ranks("rank has no memory for a share", {.degrees = {.ulysses = 3}, .ulysses = ScatterTransport::kDirect})
      .requireSuccess();
}

// This process can map so many bytes more.
class FewBytes {
 public:
  explicit FewBytes(rlim_t spare) {
    ::getrlimit(RLIMIT_AS, &before_);
    rlim_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    rlimit limit = before_;
    limit.rlim_cur = pages * static_cast<rlim_t>(::sysconf(_SC_PAGESIZE)) + spare;
    ::setrlimit(RLIMIT_AS, &limit);
  }
  ~FewBytes() { ::setrlimit(RLIMIT_AS, &before_); }

 private:
  rlimit before_{};
};

TEST_CASE("rank has memory for one share", "[.][child]") {
  ChildRank rank;
  const MeshLog log;
  HeadScatter& heads = rank.mesh().headScatter();
  // Targets of three ranks: 138 MiB.
  scatter(heads, zeros(8'388));
  std::mt19937_64 random(rank.rank());
  const at::Tensor share = randomTensor(zeros(8'400).value.sizes(), random);
  at::Tensor got;
  {
    std::optional<FewBytes> limit;
    if (rank.rank() == 1) limit.emplace(rlim_t{96} << 20);
    got = scatter(heads, {share, share, share}).value;
    CHECK(heads.direct());
  }
  CHECK(got.equal(scatterHeads(rank.mesh().group(MeshDim::kUlysses), share).wait()));
  CHECK(log.text().empty());
}

TEST_CASE("head scatter: what is kept for other shares gives way where memory is short [M12]", "[mesh]") {
  Ranks("rank has memory for one share", {.degrees = {.ulysses = 3}, .ulysses = ScatterTransport::kDirect})
      .requireSuccess();
}

// This process can open so many descriptors more, and no others.
class FewDescriptors {
 public:
  explicit FewDescriptors(int spare) {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    rlimit limit = before_;
    limit.rlim_cur = 0;  // numbers from here on are not given
    for (int free = 0; free <= spare; ++limit.rlim_cur)
      free += ::fcntl(static_cast<int>(limit.rlim_cur), F_GETFD) < 0;
    --limit.rlim_cur;
    ::setrlimit(RLIMIT_NOFILE, &limit);
  }
  ~FewDescriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};

// Rank 1 can open none, one, two, ... until it has all that it needs; what each of its meshes lacked is told.
TEST_CASE("rank has few descriptors", "[.][child]") {
  ChildRank rank(ChildRank::Start::kNothing);
  const MeshLog log;
  std::mt19937_64 random(rank.rank());
  bool direct = false;
  for (int spare = 0; !direct; ++spare) {
    rank.remake({.ulysses = 2});
    HeadScatter& heads = rank.mesh().headScatter();
    const at::Tensor share = randomTensor({1, 3, 4, 8}, random);
    const at::Tensor expected = scatterHeads(rank.mesh().group(MeshDim::kUlysses), share).wait();
    std::optional<FewDescriptors> limit;
    if (rank.rank() == 1) limit.emplace(spare);
    const at::Tensor got = scatter(heads, {share, share, share}).query;
    limit.reset();
    CHECK(got.equal(expected));
    direct = heads.direct();
    CHECK(direct == heads.obstacle().ok());
    CHECK((heads.unshared().ok() || heads.unshared() == heads.obstacle()));
    rank.send(direct ? "direct" : messageOf(heads.obstacle()));
  }
  // One rank told for both: of flags and of targets that could not be shared.
  INFO(log.text());
  CHECK(log.lines() == (rank.rank() == 0 ? 5 : 0));
  // Ranks that were told not to take another way.
  rank.scatterBy(ScatterTransport::kDirect);
  rank.remake({.ulysses = 2});
  std::optional<FewDescriptors> limit;
  if (rank.rank() == 1) limit.emplace(0);
  std::string refused;
  try {
    scatter(rank.mesh().headScatter(), zeros(1));
  } catch (const CommunicationError& error) {
    refused = messageOf(error.status());
  }
  rank.send(refused);
}

TEST_CASE("head scatter: where a rank cannot share memory, all take the all-to-all, unless told not to", "[mesh]") {
  Ranks ranks("rank has few descriptors",
              {.degrees = {.ulysses = 2}, .ulysses = ScatterTransport::kDirectIfPossible, .recorder = false});
  const std::string obstacles[] = {"shared memory \"latentd-ulysses-flags\"", "opening /proc/",
                                   "the process of rank 0: pidfd_open", "shared memory \"latentd-ulysses-targets\"",
                                   "opening /proc/"};
  for (const std::string& obstacle : obstacles) {
    const std::string reason = ranks.next(0);
    INFO(reason);
    CHECK(reason.starts_with("rank 1: " + obstacle));
    CHECK_THAT(reason, containsText("Too many open files"));
    CHECK(ranks.next(1) == reason);  // one for all
  }
  for (size_t rank = 0; rank < 2; ++rank) {
    CHECK(ranks.next(rank) == "direct");
    const std::string refused = ranks.next(rank);
    INFO(refused);
    CHECK(refused.starts_with("ranks cannot write into each other's memory: rank 1: " + obstacles[0]));
  }
  ranks.requireSuccess();
}

// ---- a rank is lost -----------------------------------------------------------------------------------------

const std::vector<std::string>& states() {
  static const std::vector<std::string> all{"before begin", "while it writes", "when all is written", "while it waits"};
  return all;
}

// The second round of a mesh, in whose state the last rank stops; what became of it is told.
void loseLastRank(ChildRank& rank, const std::string& state) {
  HeadScatter& heads = rank.mesh().headScatter();
  scatter(heads, zeros(4));
  const at::Tensor share = zeros(4).value;
  const bool last = rank.rank() + 1 == rank.mesh().shape().worldSize();
  // Whoever waits does so for this one.
  if (rank.rank() == 1 && state == "while it waits") rank.stopHere();
  if (last && state == "before begin") rank.stopHere();
  const std::string outcome = outcomeOf([&] {
    heads.begin(share.sizes(), at::kFloat);
    if (last && state == "while it waits") rank.send("here");
    PendingHeads value = heads.submit(HeadTag::kValue, share);
    if (last && state == "while it writes") rank.stopHere();
    PendingHeads query = heads.submit(HeadTag::kQuery, share);
    PendingHeads key = heads.submit(HeadTag::kKey, share);
    if (last && state == "when all is written") rank.stopHere();
    query.wait();
    key.wait();
    value.wait();
  });
  rank.send(outcome);
  const std::string next = outcomeOf([&] { scatter(heads, zeros(4)); });
  CHECK(next != "OK");
  CHECK((outcome == "OK" || next == outcome));
}

// In each state the last rank of the mesh is killed, and the others go on as a smaller one. Three are left for the
// last.
constexpr uint32_t kLosingRanks = 6;

TEST_CASE("rank of rounds that lose one rank after another", "[.][child]") {
  ChildRank rank(ChildRank::Start::kNothing);
  uint32_t ranks = kLosingRanks;
  for (const std::string& state : states()) {
    rank.remake({.ulysses = ranks--});
    loseLastRank(rank, state);
  }
}

TEST_CASE("head scatter: a rank killed in any state of a round fails the others at once [M3]", "[mesh]") {
  uint32_t left = kLosingRanks;
  Ranks ranks(
      "rank of rounds that lose one rank after another",
      {.degrees = {.ulysses = left}, .timeout = kLong, .ulysses = ScatterTransport::kDirect, .recorder = false});
  for (const std::string& state : states()) {
    INFO(state);
    if (state == "while it waits") REQUIRE(ranks.next(1) == "here");
    REQUIRE(ranks.next(--left) == "here");
    const auto begin = std::chrono::steady_clock::now();
    ranks.kill(left);
    const std::string outcome = ranks.next(0);
    INFO(outcome);
    CHECK(outcome.starts_with("UNAVAILABLE rank "));
    CHECK_THAT(outcome, containsText("group ulysses, scatter_"));
    CHECK(outcome.ends_with(": rank " + std::to_string(left) + " has died"));
    if (state == "while it waits") ranks.send(1, "go");
    for (uint32_t rank = 1; rank < left; ++rank)
      CHECK(ranks.next(rank) == outcome);  // one cause for all
    CHECK(std::chrono::steady_clock::now() - begin < kLong / 2);
  }
  ranks.requireSuccess();
}

TEST_CASE("rank of rounds in which one stops", "[.][child]") {
  ChildRank rank(ChildRank::Start::kNothing);
  std::istringstream lines(rank.setup());
  for (std::string state; std::getline(lines, state);) {
    rank.remake({.ulysses = 3});
    loseLastRank(rank, state);
    rank.stopHere();  // the stopped one has found out too
  }
}

void stopIn(const std::vector<std::string>& states) {
  constexpr milliseconds kTimeout{5000};  // in which a busy machine's ranks have to meet, too
  std::string setup;
  for (const std::string& state : states)
    setup += state + "\n";
  Ranks ranks("rank of rounds in which one stops", {.degrees = {.ulysses = 3},
                                                    .setup = setup,
                                                    .timeout = kTimeout,
                                                    .ulysses = ScatterTransport::kDirect,
                                                    .recorder = false});
  for (const std::string& state : states) {
    INFO(state);
    REQUIRE(ranks.next(2) == "here");
    const std::string outcome = ranks.next(0);
    INFO(outcome);
    CHECK(outcome.starts_with("DEADLINE_EXCEEDED rank "));
    CHECK_THAT(outcome, containsText("group ulysses, scatter_"));
    CHECK(outcome.ends_with("not done within 5000 ms"));
    CHECK(ranks.next(1) == outcome);
    ranks.send(2, "go");
    // Of what was complete it finds out at its next operation only.
    const std::string late = ranks.next(2);
    CHECK((late == outcome || (late == "OK" && state == "when all is written")));
    ranks.meet();
  }
  ranks.requireSuccess();
}

TEST_CASE("head scatter: a rank stopped in a round fails the others at the deadline [M4]", "[mesh]") {
  stopIn({"before begin", "when all is written"});
}

TEST_CASE("head scatter: a rank stopped in any state of a round fails the others at the deadline", "[.][long]") {
  for (int i = 0; i < 5; ++i)
    stopIn({"before begin", "while it writes", "when all is written"});
}

// ---- a rank gives up ----------------------------------------------------------------------------------------

const std::vector<std::string>& aborters() {
  static const std::vector<std::string> all{"by another", "by itself"};
  return all;
}

// Rank 2 gives up when told to; rank 0 may be told by another of its own threads before.
void waitForAbort(ChildRank& rank, const std::string& by) {
  Mesh& mesh = rank.mesh();
  const Status cause = absl::ResourceExhaustedError("rank 2 has no memory left");
  scatter(mesh.headScatter(), zeros(4));
  if (rank.rank() == 2) {
    rank.stopHere();
    mesh.abort(cause);
    rank.send(outcomeOf([&] { scatter(mesh.headScatter(), zeros(4)); }));
    return;
  }
  rank.send("here");
  std::thread aborter;
  if (by == "by itself" && rank.rank() == 0) {
    aborter = std::thread([&] {
      rank.next();  // all ranks are through with the first round
      mesh.abort(cause);
    });
  }
  rank.send(outcomeOf([&] { scatter(mesh.headScatter(), zeros(4)); }));
  if (aborter.joinable()) aborter.join();
}

TEST_CASE("rank that is told to stop in a round", "[.][child]") {
  ChildRank rank(ChildRank::Start::kNothing);
  for (const std::string& by : aborters()) {
    rank.remake({.ulysses = 3});
    waitForAbort(rank, by);
  }
}

TEST_CASE("head scatter: an abort on any thread of any rank frees all, with its cause [M2]", "[mesh]") {
  Ranks ranks("rank that is told to stop in a round",
              {.degrees = {.ulysses = 3}, .timeout = kLong, .ulysses = ScatterTransport::kDirect, .recorder = false});
  for (const std::string& by : aborters()) {
    INFO(by);
    for (size_t rank = 0; rank < 3; ++rank)
      REQUIRE(ranks.next(rank) == "here");
    ranks.send(by == "by another" ? 2 : 0, "go");
    for (size_t rank = 0; rank < 2; ++rank)
      CHECK(ranks.next(rank) == "RESOURCE_EXHAUSTED rank 2 has no memory left");
    if (by == "by itself") ranks.send(2, "go");
    CHECK(ranks.next(2) == "RESOURCE_EXHAUSTED rank 2 has no memory left");
  }
  ranks.requireSuccess();
}

// ---- ranks that do not do the same --------------------------------------------------------------------------

struct Difference {
  std::string what;
  std::string odd;  // what is said of rank 1
};

const std::vector<Difference>& differences() {
  static const std::vector<Difference> all{{"tag", "rank 1 scatter_k of float32 [1, 4, 60, 8]"},
                                           {"share", "rank 1 scatter_v of float32 [1, 5, 60, 8]"},
                                           {"new share", "rank 1 all_to_all of float32 [3, 7, 1, 20, 8]"}};
  return all;
}

TEST_CASE("rank that scatters something else", "[.][child]") {
  ChildRank rank(ChildRank::Start::kNothing);
  const bool odd = rank.rank() == 1;
  std::istringstream lines(rank.setup());
  for (std::string what; std::getline(lines, what);) {
    rank.remake({.ulysses = 3});
    HeadScatter& heads = rank.mesh().headScatter();
    scatter(heads, zeros(4));
    scatter(heads, zeros(5));
    rank.send(outcomeOf([&] {
      if (what == "tag") {
        const at::Tensor share = zeros(4).value;
        heads.begin(share.sizes(), at::kFloat);
        heads.submit(odd ? HeadTag::kKey : HeadTag::kValue, share).wait();
      } else if (what == "share") {
        scatter(heads, zeros(odd ? 5 : 4));
      } else {
        scatter(heads, zeros(odd ? 7 : 6));  // which no rank has seen
      }
    }));
  }
}

// `first` to `last` of the differences.
void checkDifferences(size_t first, size_t last, const testing::RanksOptions& compared) {
  testing::RanksOptions options = compared;
  options.degrees = {.ulysses = 3};
  options.timeout = kLong;
  options.ulysses = ScatterTransport::kDirect;
  for (size_t i = first; i < last; ++i)
    options.setup += differences()[i].what + "\n";
  Ranks ranks("rank that scatters something else", options);
  for (size_t i = first; i < last; ++i) {
    INFO(differences()[i].what);
    const std::string outcome = ranks.next(0);
    INFO(outcome);
    CHECK(outcome.starts_with("INTERNAL operation "));
    CHECK_THAT(outcome, containsText("differs between its ranks: "));
    CHECK_THAT(outcome, containsText(differences()[i].odd));
    CHECK(ranks.next(1) == outcome);
    CHECK(ranks.next(2) == outcome);
  }
  ranks.requireSuccess();
}

TEST_CASE("head scatter: ranks that do not scatter the same are told so [M5]", "[mesh]") {
  checkDifferences(0, differences().size(), {.recorder = false, .verify = true});  // by message, again and again
}

TEST_CASE("head scatter: ranks that do not scatter the same are told so by the recorder [M5]", "[mesh]") {
  checkDifferences(0, 1, {});  // it knows one mesh
}

TEST_CASE("head scatter: by the recorder, whatever the ranks do not do the same", "[.][long]") {
  for (size_t i = 1; i < differences().size(); ++i)
    checkDifferences(i, i + 1, {});
}

// ---- figures ------------------------------------------------------------------------------------------------

// Microseconds of a round, the median of many.
double roundMicroseconds(HeadScatter& heads, ProcessGroup& group, const Heads& given) {
  std::vector<double> times;
  for (int i = 0; i < 60; ++i) {
    at::Tensor met = at::zeros({1});
    group.allReduceSum(met).wait();
    const auto begin = std::chrono::steady_clock::now();
    scatter(heads, given);
    times.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count());
  }
  std::nth_element(times.begin(), times.begin() + 30, times.end());
  return times[30];
}

TEST_CASE("rank of a table of rounds", "[.][child]") {
  ChildRank rank;
  std::mt19937_64 random(rank.rank());
  // The demo's; a layer of a 1.3B model, of 480 and of 4 800 tokens.
  for (const std::vector<int64_t>& whole :
       {std::vector<int64_t>{1, 640, 4, 32}, {1, 480, 12, 128}, {1, 4800, 12, 128}}) {
    ProcessGroup& group = rank.mesh().group(MeshDim::kUlysses);
    const at::Tensor qkv = randomTensor({whole[0], whole[1] / group.size(), 3, whole[2], whole[3]}, random);
    const Heads given{qkv.select(2, 0), qkv.select(2, 1), qkv.select(2, 2)};
    rank.send(std::to_string(roundMicroseconds(rank.mesh().headScatter(), group, given)));
  }
}

TEST_CASE("head scatter: microseconds of Q, K and V, as a table", "[.][table]") {
  for (const uint32_t degree : {2u, 4u}) {
    for (const ScatterTransport transport : {ScatterTransport::kC10d, ScatterTransport::kDirect}) {
      Ranks ranks("rank of a table of rounds", {.degrees = {.ulysses = degree}, .ulysses = transport});
      std::string line =
          "ulysses " + std::to_string(degree) + (transport == ScatterTransport::kC10d ? " c10d" : " shm");
      for (int shape = 0; shape < 3; ++shape)
        line += "  " + ranks.next(0);
      WARN(line);
      ranks.requireSuccess();
    }
  }
}

}  // namespace
}  // namespace latentd::mesh
