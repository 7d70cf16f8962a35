#include "tests/channel/kill_suite.h"

#include <sys/types.h>

#include <fstream>
#include <functional>
#include <future>
#include <map>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "channel/slot_state.h"
#include "tests/channel/tensors.h"
#include "tests/support/catch.h"
#include "tests/support/peer_group.h"

namespace latentd::channel::testing {
namespace {

using latentd::testing::ParentPipe;
using latentd::testing::PeerGroup;

// A side can be stopped in a state: it says "here", waits for "go" (if it is not killed first), and carries on.
struct Stop {
  std::string name;
  Side side;
  std::optional<SlotState> slot;
  std::optional<ArtifactState> artifact;
};

// A producer whose traffic is steady: it says so after the number, and goes on at once.
const std::string kFlowing = "flowing";

// A consumer that reads ahead of a record, which the producer is stopped before.
const std::string kReadingAhead = "reading_ahead";

std::vector<Stop> stops() {
  return {
      {"idle", Side::kProducer, SlotState::kFree, std::nullopt},
      {"filling", Side::kProducer, SlotState::kFilling, std::nullopt},
      {"filled", Side::kProducer, SlotState::kFilling, std::nullopt},
      {"published", Side::kProducer, SlotState::kPublished, std::nullopt},
      {"sent", Side::kProducer, SlotState::kPublished, std::nullopt},
      {"awaited", Side::kConsumer, std::nullopt, ArtifactState::kAwaited},
      {kReadingAhead, Side::kConsumer, std::nullopt, ArtifactState::kAwaited},
      {"arrived", Side::kConsumer, std::nullopt, ArtifactState::kArrived},
      {"copying", Side::kConsumer, std::nullopt, ArtifactState::kCopying},
      {"taken", Side::kConsumer, std::nullopt, ArtifactState::kCopying},
      {"borrowed", Side::kConsumer, std::nullopt, ArtifactState::kBorrowed},
      {"discarding", Side::kConsumer, std::nullopt, ArtifactState::kDiscarding},
      {"acknowledged", Side::kConsumer, std::nullopt, ArtifactState::kEnded},
  };
}

// The number at which a side is stopped: the first one finds no pool, plan or target, and a later one all of them.
constexpr uint64_t kFirst = 0;
constexpr uint64_t kLater = 3;

// Descriptors, and mappings of the channel's memory files.
std::string holdings() {
  size_t mappings = 0;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);)
    mappings += line.find("memfd:latentd") != std::string::npos;
  return std::to_string(openDescriptors()) + " descriptors, " + std::to_string(mappings) + " mappings";
}

ChannelSpec killSpec() {
  ChannelSpec spec = smallSpec();
  spec.slots = 2;
  return spec;
}

// One endpoint in a process of its own.
struct Child {
  explicit Child(Side side) {
    std::istringstream setup(pipe.next());
    std::string transport;
    setup >> transport >> address >> stop >> number;
    backend = makeKillBackend(transport, side);
    context.backend = backend->backend();
  }

  void stopHere() {
    pipe.send("here");
    pipe.next();
  }
  // Where one of the points is reached first, and never again.
  void stopAt(const std::vector<std::string>& points) {
    for (const std::string& point : points) {
      faults.arm(point, 0, [this] {
        if (!std::exchange(stopped, true)) stopHere();
        return absl::OkStatus();
      });
    }
  }

  ParentPipe pipe;
  std::string address;
  std::string stop;
  uint64_t number = 0;  // at which it stops
  bool stopped = false;
  SteadyClock clock;
  FaultPoints faults;
  LoopThread loop{clock, "child-loop"};
  std::shared_ptr<KillBackend> backend;
  ChannelContext context{nullptr, &loop.loop(), &clock, &faults};
};

// Says how the side's last call ended and what is still held after the end.
void finish(Child& child, const Status& status, const std::string& before, const std::function<Status()>& end) {
  const Status ended = end();
  const std::string after = holdings();
  std::ostringstream text;
  text << absl::StatusCodeToString(status.code()) << "; end " << ended.ToString() << "; "
       << (before == after ? "nothing held" : "held: " + after + " after " + before);
  child.pipe.send(text.str());
}

}  // namespace

TEST_CASE("channel kill producer child", "[.][child]") {
  Child child(Side::kProducer);
  const std::string before = holdings();
  Heard heard;
  ProducerCallbacks callbacks;
  callbacks.on_failed = [&](const Status& failure) { heard.fail(failure); };
  auto producer = openProducer(killSpec(), Rank(0), child.address, child.context, callbacks);
  REQUIRE(producer.ok());
  child.pipe.send("open");
  child.pipe.next();  // the consumer is bound
  Status status;
  // Until the peer is gone.
  for (uint64_t n = 0; status.ok(); ++n) {
    if (n == child.number && child.stop == "idle") child.stopHere();
    if (n == child.number && child.stop == "silent") {
      REQUIRE(eventually([&] { return !heard.failures().empty(); }));
      status = heard.failures()[0];
      break;
    }
    // Of the names of stops, those in the middle of a call are names of points.
    if (n == child.number) child.stopAt({"channel.producer." + child.stop});
    status =
        (*producer)->publish(SequenceNumber(n), leaf(child.backend->floats(100'000, static_cast<float>(n))), patient());
    if (n == child.number && child.stop == kFlowing) child.stopHere();
  }
  finish(child, status, before, [&] {
    (*producer)->close();
    const Status ended = (*producer)->join(soon());
    producer->reset();
    return ended;
  });
}

namespace {

// A consumer's side of a child.
class Receiver {
 public:
  Receiver(Child& child, Consumer& consumer) : child_(child), consumer_(consumer) {}

  // Stops at its number. Until the peer is gone.
  Status receiveAll() {
    Status status;
    for (uint64_t n = 0; status.ok(); ++n) {
      if (n == child_.number && stop()) continue;
      status = consumer_.receive(SequenceNumber(n), child_.backend->allocator(), patient()).status();
    }
    if (awaited_.valid()) awaited_.get();
    return status;
  }

 private:
  // True if the number is over then.
  bool stop() {
    const SequenceNumber number(child_.number);
    if (child_.stop == "awaited") {
      // receive() is waiting when the parent acts: it says so once the number is known and nothing came.
      awaited_ = std::async(std::launch::async, [this] {
        eventually([&] { return consumer_.stats().pending == 1; });
        child_.stopHere();
      });
    } else if (child_.stop == "arrived") {
      eventually([&] { return consumer_.stats().pending == 2; });
      child_.stopHere();
    } else if (child_.stop == "taken") {
      hold(consumer_.take(number, child_.backend->allocator(), patient()));
      return true;
    } else if (child_.stop == "borrowed") {
      hold(consumer_.borrow(number, patient()));
      return true;
    } else if (child_.stop == "discarding") {
      REQUIRE(consumer_.discard(number, "cancelled").ok());
      child_.stopHere();
      return true;
    } else if (child_.stop == "copying") {
      child_.stopAt({"channel.consumer.copying", "channel.consumer." + kReadingAhead});  // whichever copies it
    } else {
      child_.stopAt({"channel.consumer." + child_.stop});
    }
    return false;
  }

  void hold(StatusOr<HeldArtifact> got) {
    REQUIRE(got.ok());
    const float expected = 7 + static_cast<float>(child_.number);
    // The producer's device may be killed before it has filled the slot, and what was read then is anything.
    const bool filled = child_.backend->floatAt(*got->tree().getIf<TensorView>(), 7) == expected;
    child_.stopHere();
    // What is held stays readable whatever happened to the producer.
    CHECK(filled);
    CHECK(child_.backend->floatAt(*got->tree().getIf<TensorView>(), 7) == expected);
  }

  Child& child_;
  Consumer& consumer_;
  std::future<void> awaited_;
};

}  // namespace

TEST_CASE("channel kill consumer child", "[.][child]") {
  Child child(Side::kConsumer);
  const std::string before = holdings();
  auto consumer = openConsumer(killSpec(), Rank(0), {child.address}, child.backend->device(), child.context);
  REQUIRE(consumer.ok());
  child.pipe.send("open");
  child.pipe.next();
  const Status status = Receiver(child, **consumer).receiveAll();
  finish(child, status, before, [&] {
    (*consumer)->close();
    const Status ended = (*consumer)->join(soon());
    consumer->reset();
    return ended;
  });
}

namespace {

// Both sides, in processes of their own, connected.
struct Pair {
  Pair(const std::string& transport, const std::string& producer_stop, const std::string& consumer_stop,
       uint64_t number) {
    const std::string address = transport + " " + dir.file("p.sock") + " ";
    const std::string at = " " + std::to_string(number);
    producer = group.start("channel kill producer child", address + producer_stop + at);
    REQUIRE(group.next(producer) == "open");
    consumer = group.start("channel kill consumer child", address + consumer_stop + at);
    REQUIRE(group.next(consumer) == "open");
    group.send(producer, "bound");
    group.send(consumer, "bound");
  }
  size_t of(Side side) const { return side == Side::kProducer ? producer : consumer; }

  // What the survivor says.
  void check(Side survivor) {
    CHECK(group.next(of(survivor)).value_or("(died)") == "UNAVAILABLE; end OK; nothing held");
    CHECK(group.wait(of(survivor)) == 0);
  }

  const TempDir dir;
  PeerGroup group;
  size_t producer = 0;
  size_t consumer = 0;
};

Side otherThan(Side side) { return side == Side::kProducer ? Side::kConsumer : Side::kProducer; }

// Brings one side to the stop, kills one side, and checks what the other one says.
void killAt(const std::string& transport, const Stop& stop, Side victim, uint64_t number) {
  CAPTURE(stop.name, victim == Side::kProducer, number);
  // A consumer waits in vain only if nobody publishes.
  const bool silent = stop.name == "awaited" || stop.name == "discarding";
  const bool both = stop.name == kReadingAhead;
  const std::string producer_stop = stop.side == Side::kProducer ? stop.name
                                    : silent                     ? "silent"
                                    : both                       ? "filled"
                                                                 : "-";
  Pair pair(transport, producer_stop, stop.side == Side::kConsumer ? stop.name : "-", number);
  if (both) REQUIRE(pair.group.next(pair.producer) == "here");
  REQUIRE(pair.group.next(pair.of(stop.side)) == "here");
  pair.group.kill(pair.of(victim));
  const Side survivor = otherThan(victim);
  const auto start = std::chrono::steady_clock::now();
  if (both || survivor == stop.side) pair.group.send(pair.of(survivor), "go");
  pair.check(survivor);
  // Seen by the end of the connection, not by a time-out.
  CHECK(std::chrono::steady_clock::now() - start < kPatience / 2);
}

}  // namespace

void killInEveryState(const std::string& transport, bool reads_ahead) {
  std::set<SlotState> slots;
  std::set<ArtifactState> artifacts;
  for (const Stop& stop : stops()) {
    for (const Side victim : {Side::kProducer, Side::kConsumer}) {
      for (const uint64_t number : {kFirst, kLater}) {
        if (stop.name == kReadingAhead && (!reads_ahead || number == kFirst)) continue;
        DYNAMIC_SECTION(stop.name << " at number " << number << ", the "
                                  << (victim == Side::kProducer ? "producer" : "consumer") << " dies") {
          killAt(transport, stop, victim, number);
        }
      }
    }
    if (stop.slot) slots.insert(*stop.slot);
    if (stop.artifact) artifacts.insert(*stop.artifact);
  }
  // The table has no state that is not visited.
  for (const SlotState state : kSlotStates) {
    CAPTURE(toString(state));
    CHECK(slots.count(state) == 1);
  }
  for (const ArtifactState state : kArtifactStates) {
    CAPTURE(toString(state));
    CHECK(artifacts.count(state) == 1);
  }
}

// Kills either side at a random moment of steady traffic.
void killAtRandom(const std::string& transport, std::mt19937& random, int rounds) {
  for (int round = 0; round < rounds; ++round) {
    Pair pair(transport, kFlowing, "-", kLater);
    REQUIRE(pair.group.next(pair.producer) == "here");
    pair.group.send(pair.producer, "go");
    const Side victim = random() % 2 == 0 ? Side::kProducer : Side::kConsumer;
    const auto moment = std::chrono::microseconds(random() % 20'000);
    CAPTURE(round, victim == Side::kProducer, moment.count());
    const auto start = std::chrono::steady_clock::now();
    // Spins: the moment is random, nothing waits for it.
    while (std::chrono::steady_clock::now() - start < moment) {
    }
    pair.group.kill(pair.of(victim));
    pair.check(otherThan(victim));
  }
}

}  // namespace latentd::channel::testing
