#include "runtime/base/flight_recorder.h"

#include <signal.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <new>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/child_test_case.h"

namespace latentd {
namespace {

using testing::ChildTestCase;

FlightRecorder recorderOf(int fd, uint32_t rank) {
  return FlightRecorder::attach(ShmRegion::map(duplicateFd(fd).value(), 1).value(), Rank(rank)).value();
}

Operation operation(const std::string& kind, const std::string& group, uint64_t sequence) {
  Operation operation;
  operation.kind = kind;
  operation.group = group;
  operation.members = 5;
  operation.sequence = sequence;
  operation.dtype = DType::kBFloat16;
  operation.shape = {2, 320, 12, 128};
  operation.bytes_sent = 1000;
  operation.submitted_ns = 17;
  return operation;
}

TEST_CASE("flight recorder: anybody reads what a rank began and ended", "[base]") {
  const ShmRegion region = FlightRecorder::createRegion(2).value();
  FlightRecorder first = recorderOf(region.fd(), 0);
  const FlightRecorder second = recorderOf(region.fd(), 1);
  CHECK(second.ranks() == 2);
  CHECK(second.operations(Rank(0)).empty());
  const uint64_t number = first.begin(operation("all_to_all", "ulysses", 1));
  first.begin(operation("all_reduce", "world", 1));
  first.end(number);

  const std::vector<Operation> read = second.operations(Rank(0));
  REQUIRE(read.size() == 2);
  CHECK(read[0].kind == "all_to_all");
  CHECK(read[0].group == "ulysses");
  CHECK(read[0].members == 5);
  CHECK(read[0].sequence == 1);
  CHECK(read[0].dtype == DType::kBFloat16);
  CHECK(read[0].shape == std::vector<int64_t>{2, 320, 12, 128});
  CHECK(read[0].bytes_sent == 1000);
  CHECK(read[0].submitted_ns == 17);
  CHECK(read[0].done_ns > 0);
  CHECK(read[1].kind == "all_reduce");
  CHECK(read[1].done_ns == 0);
  CHECK(second.operations(Rank(1)).empty());
  CHECK(second.totals(Rank(0)).operations == 2);
  CHECK(second.totals(Rank(0)).bytes_sent == 2000);
  CHECK(second.totals(Rank(1)).operations == 0);
}

TEST_CASE("flight recorder: the oldest operations are overwritten, and ending one of them changes nothing", "[base]") {
  FlightRecorder recorder = FlightRecorder::attach(FlightRecorder::createRegion(1).value(), Rank(0)).value();
  const uint64_t oldest = recorder.begin(operation("broadcast", "world", 1));
  for (uint64_t sequence = 2; sequence <= FlightRecorder::kOperations + 10; ++sequence)
    recorder.begin(operation("send", "ring", sequence));
  recorder.end(oldest);
  const std::vector<Operation> read = recorder.operations(Rank(0));
  REQUIRE(read.size() == FlightRecorder::kOperations);
  CHECK(read.front().sequence == 11);
  CHECK(read.back().sequence == FlightRecorder::kOperations + 10);
  CHECK(std::all_of(read.begin(), read.end(), [](const Operation& each) { return each.done_ns == 0; }));
  CHECK(recorder.totals(Rank(0)).operations == FlightRecorder::kOperations + 10);
}

TEST_CASE("flight recorder: names and shapes that are too long are cut", "[base]") {
  FlightRecorder recorder = FlightRecorder::attach(FlightRecorder::createRegion(1).value(), Rank(0)).value();
  Operation mine = operation(std::string(40, 'k'), "tab\tulator", 1);
  mine.shape.assign(9, 3);
  recorder.begin(mine);
  const Operation read = recorder.operations(Rank(0)).at(0);
  CHECK(read.kind == std::string(Operation::kNameBytes - 1, 'k'));
  CHECK(read.group == "tab?ulator");
  CHECK(read.shape == std::vector<int64_t>(Operation::kDimsMax, 3));
}

TEST_CASE("flight recorder: ranks that do not do the same are told apart", "[base]") {
  const ShmRegion region = FlightRecorder::createRegion(3).value();
  FlightRecorder first = recorderOf(region.fd(), 0);
  FlightRecorder third = recorderOf(region.fd(), 2);
  const std::vector<Rank> peers{Rank(0), Rank(2)};
  const Operation mine = operation("all_to_all", "ulysses", 7);
  first.begin(mine);
  CHECK(first.disagreement(mine, peers, true).ok());  // rank 2 is not there yet

  Operation other = mine;
  other.shape[1] = 321;
  third.begin(operation("send", "ring", 7));  // another group's
  third.begin(other);
  CHECK(third.disagreement(other, peers, false).ok());
  const Status shapes = third.disagreement(other, peers, true);
  CHECK(shapes.code() == absl::StatusCode::kInternal);
  CHECK(messageOf(shapes) ==
        "operation 7 of process group ulysses differs between its ranks: rank 2 all_to_all of bfloat16 "
        "[2, 321, 12, 128], rank 0 all_to_all of bfloat16 [2, 320, 12, 128]");

  // The same in another run is another operation.
  Operation later = mine;
  later.sequence = 8;
  later.run = 3;
  third.begin(later);
  Operation earlier = later;
  earlier.run = 2;
  const Status runs = first.disagreement(earlier, peers, true);
  CHECK(messageOf(runs) ==
        "operation 8 of process group ulysses differs between its ranks: rank 0 all_to_all of bfloat16 "
        "[2, 320, 12, 128] in run 2, rank 2 all_to_all of bfloat16 [2, 320, 12, 128] in run 3");
  CHECK(first.disagreement(later, peers, true).ok());

  for (Operation wrong : {operation("all_reduce", "ulysses", 9), operation("all_to_all", "ulysses", 9)}) {
    if (wrong.kind == "all_to_all") wrong.dtype = DType::kFloat32;
    third.begin(wrong);
    CHECK_FALSE(first.disagreement(operation("all_to_all", "ulysses", 9), peers, false).ok());
  }
  // Rank 2 has no longer, or not yet, the operation.
  CHECK(first.disagreement(operation("all_reduce", "ulysses", 6), peers, false).ok());
  CHECK(first.disagreement(operation("all_reduce", "ulysses", 10), peers, false).ok());
  // Nobody compares with ranks outside of the group.
  CHECK(first.disagreement(operation("all_reduce", "ulysses", 7), {Rank(0), Rank(1)}, false).ok());
}

TEST_CASE("flight recorder: foreign memory and ranks it has no ring for are refused", "[base]") {
  CHECK(FlightRecorder::createRegion(0).status().code() == absl::StatusCode::kInvalidArgument);
  CHECK(FlightRecorder::createRegion(FlightRecorder::kRanksMax + 1).status().code() ==
        absl::StatusCode::kInvalidArgument);
  CHECK(FlightRecorder::attach(ShmRegion::create("zeros", 65536).value(), Rank(0)).status().code() ==
        absl::StatusCode::kInvalidArgument);
  const ShmRegion region = FlightRecorder::createRegion(2).value();
  CHECK_FALSE(FlightRecorder::attach(ShmRegion::map(duplicateFd(region.fd()).value(), 1).value(), Rank(2)).ok());
  const ShmRegion larger = FlightRecorder::createRegion(3).value();
  auto cut = ShmRegion::create("cut", region.bytes());
  std::memcpy(cut->data(), larger.data(), region.bytes());
  CHECK_FALSE(FlightRecorder::attach(std::move(cut).value(), Rank(0)).ok());
}

TEST_CASE("flight recorder: whatever a rank wrote, its readers survive", "[base]") {
  const ShmRegion region = FlightRecorder::createRegion(1).value();
  const FlightRecorder reader = recorderOf(region.fd(), 0);
  for (const int fill : {0x00, 0x01, 0x7f, 0xff}) {
    std::memset(region.data() + 16, fill, region.bytes() - 16);
    CHECK(reader.operations(Rank(0)).size() <= FlightRecorder::kOperations);
    CHECK(reader.disagreement(operation("send", "ring", 1), {Rank(0)}, true).ok());
  }
}

// ---- readers beside writers ---------------------------------------------------------------------------------

// Every field says the same number.
Operation telling(uint64_t number) {
  Operation operation;
  operation.kind = "k" + std::to_string(number);
  operation.group = "g" + std::to_string(number);
  operation.sequence = number;
  operation.shape.assign(1 + number % Operation::kDimsMax, static_cast<int64_t>(number));
  operation.bytes_sent = number;
  operation.submitted_ns = static_cast<int64_t>(number);
  return operation;
}

bool whole(const Operation& read) {
  const Operation expected = telling(read.sequence);
  return read.kind == expected.kind && read.group == expected.group && read.shape == expected.shape &&
         read.bytes_sent == expected.bytes_sent && read.submitted_ns == expected.submitted_ns;
}

constexpr uint64_t kWritten = 20'000;

void writeAll(FlightRecorder& recorder) {
  for (uint64_t number = 1; number <= kWritten; ++number)
    recorder.end(recorder.begin(telling(number)));
}

// Reads until the writer has written everything; the entries that it saw.
size_t readAll(const FlightRecorder& recorder, Rank rank) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  size_t seen = 0;
  uint64_t newest = 0;
  while (newest < kWritten && std::chrono::steady_clock::now() < deadline) {
    const std::vector<Operation> read = recorder.operations(rank);
    bool rising = true;
    for (size_t i = 0; i < read.size(); ++i) {
      if (!whole(read[i])) FAIL("torn entry " << read[i].sequence);
      rising = rising && (i == 0 || read[i - 1].sequence < read[i].sequence);
    }
    if (!rising) FAIL("entries out of order");
    seen += read.size();
    if (!read.empty()) newest = read.back().sequence;
  }
  CHECK(newest == kWritten);
  return seen;
}

TEST_CASE("flight recorder: a reader beside the writing thread sees whole entries in order", "[base]") {
  const ShmRegion region = FlightRecorder::createRegion(1).value();
  FlightRecorder writer = recorderOf(region.fd(), 0);
  const FlightRecorder reader = recorderOf(region.fd(), 0);
  std::thread thread([&writer] { writeAll(writer); });
  CHECK(readAll(reader, Rank(0)) > 0);
  thread.join();
}

TEST_CASE("flight recorder child that writes", "[.][child]") {
  FlightRecorder recorder = recorderOf(3, 1);
  writeAll(recorder);
}

TEST_CASE("flight recorder: a reader beside another process sees whole entries in order", "[base][process]") {
  const ShmRegion region = FlightRecorder::createRegion(2).value();
  ChildTestCase child("flight recorder child that writes", {region.fd()});
  CHECK(readAll(recorderOf(region.fd(), 0), Rank(1)) > 0);
  CHECK(child.wait(std::chrono::seconds(30)) == 0);
}

// ---- two that begin at once ---------------------------------------------------------------------------------

constexpr uint32_t kRounds = 500;

struct Duel {
  std::atomic<uint32_t> started[2];
  std::atomic<uint32_t> noticed[kRounds];
};

// Both ranks begin operation n at once, each with its own kind.
void duel(int recorder_fd, int duel_fd, uint32_t rank) {
  FlightRecorder recorder = recorderOf(recorder_fd, rank);
  const ShmRegion region = ShmRegion::map(duplicateFd(duel_fd).value(), sizeof(Duel)).value();
  auto* shared = reinterpret_cast<Duel*>(region.data());
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  for (uint32_t round = 1; round <= kRounds; ++round) {
    const Operation mine = operation(rank == 0 ? "send" : "receive", "ring", round);
    shared->started[rank].store(round);
    while (shared->started[1 - rank].load() < round) {
      if (std::chrono::steady_clock::now() > deadline) FAIL("the other rank does not come");
      std::this_thread::yield();
    }
    recorder.begin(mine);
    if (!recorder.disagreement(mine, {Rank(0), Rank(1)}, false).ok()) shared->noticed[round - 1].fetch_add(1);
  }
}

TEST_CASE("flight recorder child that duels", "[.][child]") { duel(3, 4, 1); }

TEST_CASE("flight recorder: of two ranks that begin at once at least one sees the other", "[base][process]") {
  const ShmRegion region = FlightRecorder::createRegion(2).value();
  const ShmRegion shared = ShmRegion::create("duel", sizeof(Duel)).value();
  auto* rounds = new (shared.data()) Duel{};
  ChildTestCase child("flight recorder child that duels", {region.fd(), shared.fd()});
  duel(region.fd(), shared.fd(), 0);
  CHECK(child.wait(std::chrono::seconds(30)) == 0);
  for (uint32_t round = 0; round < kRounds; ++round)
    CHECK(rounds->noticed[round] >= 1);
}

// ---- what a dead rank leaves --------------------------------------------------------------------------------

TEST_CASE("flight recorder child that hangs", "[.][child]") {
  FlightRecorder recorder = recorderOf(3, 1);
  recorder.end(recorder.begin(operation("all_to_all", "ulysses", 1)));
  recorder.begin(operation("all_to_all", "ulysses", 2));
  ::raise(SIGSTOP);
}

TEST_CASE("flight recorder: what a killed rank was doing can be read", "[base][process]") {
  const ShmRegion region = FlightRecorder::createRegion(2).value();
  const FlightRecorder reader = recorderOf(region.fd(), 0);
  ChildTestCase child("flight recorder child that hangs", {region.fd()});
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (reader.totals(Rank(1)).operations < 2 && std::chrono::steady_clock::now() < deadline)
    std::this_thread::yield();
  child.signal(SIGKILL);
  CHECK(child.wait(std::chrono::seconds(30)) == 128 + SIGKILL);
  const std::vector<Operation> read = reader.operations(Rank(1));
  REQUIRE(read.size() == 2);
  CHECK(read[0].done_ns > 0);
  CHECK(read[1].sequence == 2);
  CHECK(read[1].done_ns == 0);
}

}  // namespace
}  // namespace latentd
