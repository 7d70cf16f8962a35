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

std::vector<Stop> stops() {
  return {
      {"idle", Side::kProducer, SlotState::kFree, std::nullopt},
      {"filling", Side::kProducer, SlotState::kFilling, std::nullopt},
      {"published", Side::kProducer, SlotState::kPublished, std::nullopt},
      {"sent", Side::kProducer, SlotState::kPublished, std::nullopt},
      {"awaited", Side::kConsumer, std::nullopt, ArtifactState::kAwaited},
      {"arrived", Side::kConsumer, std::nullopt, ArtifactState::kArrived},
      {"copying", Side::kConsumer, std::nullopt, ArtifactState::kCopying},
      {"taken", Side::kConsumer, std::nullopt, ArtifactState::kCopying},
      {"borrowed", Side::kConsumer, std::nullopt, ArtifactState::kBorrowed},
      {"discarding", Side::kConsumer, std::nullopt, ArtifactState::kDiscarding},
      {"acknowledged", Side::kConsumer, std::nullopt, ArtifactState::kEnded},
  };
}

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
  ParentPipe pipe;
  SteadyClock clock;
  FaultPoints faults;
  LoopThread loop{clock, "child-loop"};
  std::shared_ptr<KillBackend> backend;
  ChannelContext context{nullptr, &loop.loop(), &clock, &faults};

  void use(const std::string& transport, Side side) {
    backend = makeKillBackend(transport, side);
    context.backend = backend->backend();
  }

  void stopHere() {
    pipe.send("here");
    pipe.next();
  }
  void stopAt(const std::string& point) {
    faults.arm(point, 0, [this] {
      stopHere();
      return absl::OkStatus();
    });
  }
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
  Child child;
  std::istringstream setup(child.pipe.next());
  std::string transport, address, stop;
  setup >> transport >> address >> stop;
  child.use(transport, Side::kProducer);
  const std::string before = holdings();
  Heard heard;
  ProducerCallbacks callbacks;
  callbacks.on_failed = [&](const Status& failure) { heard.fail(failure); };
  auto producer = openProducer(killSpec(), Rank(0), address, child.context, callbacks);
  REQUIRE(producer.ok());
  child.pipe.send("open");
  child.pipe.next();  // the consumer is bound
  if (stop == "filling") child.stopAt("channel.producer.filling");
  if (stop == "published") child.stopAt("channel.producer.published");
  if (stop == "sent") child.stopAt("channel.producer.sent");
  if (stop == "idle") child.stopHere();
  Status status;
  // Until the peer is gone.
  for (uint64_t n = 0; status.ok() && stop != "silent"; ++n) {
    WaitOptions wait;
    wait.deadline = soon();
    status = (*producer)->publish(SequenceNumber(n), leaf(child.backend->floats(100'000, static_cast<float>(n))), wait);
    for (const char* point : {"channel.producer.filling", "channel.producer.published", "channel.producer.sent"}) {
      child.faults.disarm(point);
    }
  }
  if (stop == "silent") {
    REQUIRE(eventually([&] { return !heard.failures().empty(); }));
    status = heard.failures()[0];
  }
  finish(child, status, before, [&] {
    (*producer)->close();
    const Status ended = (*producer)->join(soon());
    producer->reset();
    return ended;
  });
}

TEST_CASE("channel kill consumer child", "[.][child]") {
  Child child;
  std::istringstream setup(child.pipe.next());
  std::string transport, address, stop;
  setup >> transport >> address >> stop;
  child.use(transport, Side::kConsumer);
  const std::string before = holdings();
  auto consumer = openConsumer(killSpec(), Rank(0), {address}, child.backend->device(), child.context);
  REQUIRE(consumer.ok());
  child.pipe.send("open");
  child.pipe.next();
  if (stop == "copying") child.stopAt("channel.consumer.copying");
  if (stop == "acknowledged") child.stopAt("channel.consumer.acknowledged");
  Status status;
  WaitOptions wait;
  wait.deadline = soon();
  std::future<void> awaited;
  std::optional<HeldArtifact> held;
  if (stop == "awaited") {
    // receive() is waiting when the parent acts: it says so once the number is known and nothing came.
    awaited = std::async(std::launch::async, [&] {
      eventually([&] { return (*consumer)->stats().pending == 1; });
      child.stopHere();
    });
  } else if (stop == "arrived") {
    eventually([&] { return (*consumer)->stats().pending == 2; });
    child.stopHere();
  } else if (stop == "borrowed" || stop == "taken") {
    auto got = stop == "taken" ? (*consumer)->take(SequenceNumber(0), child.backend->allocator(), wait)
                               : (*consumer)->borrow(SequenceNumber(0), wait);
    REQUIRE(got.ok());
    held = *std::move(got);
    // The producer's device may be killed before it has filled the slot, and what was read then is anything.
    const bool filled = child.backend->floatAt(*held->tree().getIf<TensorView>(), 7) == 7;
    child.stopHere();
    // What is held stays readable whatever happened to the producer.
    CHECK(filled);
    CHECK(child.backend->floatAt(*held->tree().getIf<TensorView>(), 7) == 7);
    held->release();
  } else if (stop == "discarding") {
    REQUIRE((*consumer)->discard(SequenceNumber(0), "cancelled").ok());
    child.stopHere();
  }
  for (uint64_t n = held || stop == "discarding" ? 1 : 0; status.ok(); ++n) {
    status = (*consumer)->receive(SequenceNumber(n), child.backend->allocator(), wait).status();
    child.faults.disarm("channel.consumer.copying");
    child.faults.disarm("channel.consumer.acknowledged");
  }
  if (awaited.valid()) awaited.get();
  held.reset();
  finish(child, status, before, [&] {
    (*consumer)->close();
    const Status ended = (*consumer)->join(soon());
    consumer->reset();
    return ended;
  });
}

namespace {

// Brings one side to the stop, kills one side, and checks what the other one says.
void killAt(const std::string& transport, const Stop& stop, Side victim) {
  CAPTURE(stop.name, victim == Side::kProducer);
  const TempDir dir;
  const std::string address = dir.file("p.sock");
  PeerGroup group;
  // A consumer waits in vain only if nobody publishes.
  const bool silent = stop.name == "awaited" || stop.name == "discarding";
  const std::string producer_stop = stop.side == Side::kProducer ? stop.name : silent ? "silent" : "none";
  const size_t producer = group.start("channel kill producer child", transport + " " + address + " " + producer_stop);
  REQUIRE(group.next(producer) == "open");
  const std::string consumer_stop = stop.side == Side::kConsumer ? stop.name : "none";
  const size_t consumer = group.start("channel kill consumer child", transport + " " + address + " " + consumer_stop);
  REQUIRE(group.next(consumer) == "open");
  group.send(producer, "bound");
  group.send(consumer, "bound");
  const size_t stopped = stop.side == Side::kProducer ? producer : consumer;
  REQUIRE(group.next(stopped) == "here");
  const size_t killed = victim == Side::kProducer ? producer : consumer;
  const size_t survivor = victim == Side::kProducer ? consumer : producer;
  group.kill(killed);
  const auto start = std::chrono::steady_clock::now();
  if (survivor == stopped) group.send(stopped, "go");
  const auto verdict = group.next(survivor);
  REQUIRE(verdict.has_value());
  CHECK(*verdict == "UNAVAILABLE; end OK; nothing held");
  // Seen by the end of the connection, not by a time-out.
  CHECK(std::chrono::steady_clock::now() - start < kPatience / 2);
  CHECK(group.wait(survivor) == 0);
}

}  // namespace

void killInEveryState(const std::string& transport) {
  std::set<SlotState> slots;
  std::set<ArtifactState> artifacts;
  for (const Stop& stop : stops()) {
    for (const Side victim : {Side::kProducer, Side::kConsumer}) {
      DYNAMIC_SECTION(stop.name << ", the " << (victim == Side::kProducer ? "producer" : "consumer") << " dies") {
        killAt(transport, stop, victim);
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
    const TempDir dir;
    const std::string address = dir.file("p.sock");
    PeerGroup group;
    const size_t producer = group.start("channel kill producer child", transport + " " + address + " none");
    REQUIRE(group.next(producer) == "open");
    const size_t consumer = group.start("channel kill consumer child", transport + " " + address + " none");
    REQUIRE(group.next(consumer) == "open");
    group.send(producer, "bound");
    group.send(consumer, "bound");
    const bool kill_producer = random() % 2 == 0;
    const auto moment = std::chrono::microseconds(random() % 20'000);
    CAPTURE(round, kill_producer, moment.count());
    const auto start = std::chrono::steady_clock::now();
    // Spins: the moment is random, nothing waits for it.
    while (std::chrono::steady_clock::now() - start < moment) {
    }
    group.kill(kill_producer ? producer : consumer);
    const size_t survivor = kill_producer ? consumer : producer;
    CHECK(group.next(survivor).value_or("(died)") == "UNAVAILABLE; end OK; nothing held");
    CHECK(group.wait(survivor) == 0);
  }
}

}  // namespace latentd::channel::testing
