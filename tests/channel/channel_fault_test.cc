#include <array>
#include <future>
#include <limits>
#include <random>
#include <stdexcept>

#include "channel/fake_backend.h"
#include "channel/limits.h"
#include "proto/channel.pb.h"
#include "tests/channel/channel_rig.h"
#include "tests/channel/draw.h"
#include "tests/channel/tensors.h"
#include "tests/support/catch.h"

// Faults that only the in-process backend can inject: corrupt, late and lost messages, want of memory, peers that do
// not read.
namespace latentd::channel::testing {
namespace {

using absl::StatusCode;
using Side = FakeBackend::Side;

#ifdef __SANITIZE_THREAD__
constexpr bool kThreadSanitized = true;
#else
constexpr bool kThreadSanitized = false;
#endif

struct FakeRig {
  explicit FakeRig(const ChannelSpec& spec = smallSpec())
      : rig({"fake", fake, [](const TempDir& dir, uint32_t rank) { return dir.file(std::to_string(rank)); }}, spec) {}

  std::shared_ptr<FakeBackend> fake = FakeBackend::make();
  Rig rig;

  Status publish(uint64_t number) { return rig.publish(number, leaf(floats({64}, static_cast<float>(number)))); }
};

// Changes the next message of a side that `change` recognises.
void change(FakeRig& it, Side from, const std::function<bool(v1::Message&)>& change) {
  it.fake->tamper(from, [change](std::string& bytes) {
    v1::Message message;
    if (message.ParseFromString(bytes) && change(message)) bytes = message.SerializeAsString();
    return true;
  });
}

}  // namespace

TEST_CASE("channel: a publication out of bounds ends the channel, not the process [C8]", "[channel][fault]") {
  using Change = std::function<void(v1::Publication&)>;
  const std::pair<const char*, Change> changes[] = {
      {"profile", [](v1::Publication& p) { p.mutable_leaves(0)->mutable_pooled()->set_profile(1u << 31); }},
      {"unknown profile", [](v1::Publication& p) { p.mutable_leaves(0)->mutable_pooled()->set_profile(5); }},
      {"slot", [](v1::Publication& p) { p.mutable_leaves(0)->mutable_pooled()->set_slot(2); }},
      {"future generation", [](v1::Publication& p) { p.mutable_leaves(0)->mutable_pooled()->set_generation(9); }},
      {"extent", [](v1::Publication& p) { p.mutable_leaves(0)->mutable_desc()->set_shape(0, 1 << 30); }},
      {"negative extent", [](v1::Publication& p) { p.mutable_leaves(0)->mutable_desc()->set_shape(0, -64); }},
      {"overflowing extents",
       [](v1::Publication& p) {
         for (int i = 0; i < 6; ++i)
           p.mutable_leaves(0)->mutable_desc()->add_shape(1ll << 62);
       }},
      {"dimensions",
       [](v1::Publication& p) {
         for (int i = 0; i < 9; ++i)
           p.mutable_leaves(0)->mutable_desc()->add_shape(1);
       }},
      {"dtype", [](v1::Publication& p) { p.mutable_leaves(0)->mutable_desc()->set_dtype(latentd::v1::DTYPE_INVALID); }},
      {"place", [](v1::Publication& p) { p.mutable_leaves(0)->clear_pooled(); }},
      {"offset without a buffer", [](v1::Publication& p) { p.mutable_leaves(0)->set_unpooled_offset(0); }},
      {"ticket", [](v1::Publication& p) { p.mutable_ticket()->set_index(kTickets); }},
      {"ticket generation", [](v1::Publication& p) { p.mutable_ticket()->set_generation(5); }},
      {"leaf index", [](v1::Publication& p) { p.mutable_tree()->set_leaf(1); }},
      {"node of no kind", [](v1::Publication& p) { p.mutable_tree()->clear_kind(); }},
      {"keys", [](v1::Publication& p) { p.mutable_tree()->mutable_dict()->add_keys("x"); }},
  };
  for (const auto& [name, corrupt] : changes) {
    DYNAMIC_SECTION(name) {
      FakeRig it;
      change(it, Side::kProducer, [&](v1::Message& message) {
        if (message.has_publication()) corrupt(*message.mutable_publication());
        return message.has_publication();
      });
      REQUIRE(it.publish(0).ok());
      CHECK(it.rig.receive(0).status().code() == StatusCode::kInternal);
      // Both sides end in order.
      REQUIRE(eventually([&] { return it.rig.producerHeard().failures().size() == 1; }));
      CHECK(it.rig.producerHeard().failures()[0].code() == StatusCode::kUnavailable);
    }
  }
}

TEST_CASE("channel: an artifact like the last is told by its slots alone, and any other in full [C20]",
          "[channel][fault]") {
  FakeRig it;
  std::string kinds;
  it.fake->tamper(Side::kProducer, [&](std::string& bytes) {
    v1::Message message;
    REQUIRE(message.ParseFromString(bytes));
    if (message.has_publication()) kinds += "p";
    if (message.has_again()) kinds += "a";
    return true;
  });
  uint64_t number = 0;
  const auto send = [&](const ArtifactTree& tree) {
    REQUIRE(it.rig.publish(number, tree).ok());
    REQUIRE(it.rig.receive(number++).ok());
  };
  const auto pair = [](const ArtifactTree& scalar, float first) {
    return dict({{"x", leaf(floats({64}, first))}, {"scalar", scalar}});
  };
  send(pair(ArtifactTree::Value(0.0), 1));
  send(pair(ArtifactTree::Value(0.0), 2));
  send(pair(ArtifactTree::Value(-0.0), 3));
  send(pair(ArtifactTree::Value(-0.0), 4));
  send(pair(ArtifactTree::Value(int64_t{0}), 5));
  send(ArtifactTree::Value(int64_t{5}));  // a ticket is never told again
  send(ArtifactTree::Value(int64_t{5}));
  send(pair(ArtifactTree::Value(int64_t{0}), 6));
  send(pair(ArtifactTree::Value(int64_t{0}), 7));
  CHECK(kinds == "papappppa");
}

// Two producer ranks with a half each; number 0 has been received, and messages of the producers are held.
struct HalvesRig : FakeRig {
  explicit HalvesRig(uint32_t slots = 2) : FakeRig(specOf(slots)) { exchange(0); }
  void exchange(uint64_t number) {
    fake->release(Side::kProducer);
    for (const uint32_t rank : {0, 1})
      REQUIRE(publish(number, rank, 0).ok());
    REQUIRE(rig.receive(number).ok());
    const auto in_use = [&] { return rig.producer(0).stats().slots_in_use + rig.producer(1).stats().slots_in_use; };
    REQUIRE(eventually([&] { return in_use() == 0; }));
    fake->hold(Side::kProducer);
  }
  static ChannelSpec specOf(uint32_t slots) {
    ChannelSpec spec = smallSpec();
    spec.producer_ranks = 2;
    spec.producer_shard_dim = 0;
    spec.slots = slots;
    return spec;
  }
  Status publish(uint64_t number, uint32_t rank, float first) { return rig.publish(number, leaf(half(first)), rank); }
  // When its slot is filled.
  void failToPublish(uint64_t number, uint32_t rank) {
    rig.faults().arm("channel.producer.filled", 0, [] { return absl::InternalError("injected"); });
    REQUIRE_FALSE(publish(number, rank, 900).ok());
    rig.faults().disarm("channel.producer.filled");
  }
  std::future<StatusOr<ArtifactTree>> receive(uint64_t number) {
    auto received = std::async(std::launch::async, [this, number] { return rig.receive(number); });
    REQUIRE(eventually([&] { return rig.consumer().stats().pending == 1; }));
    return received;
  }
  bool readAhead(uint64_t times) {
    return eventually([&] { return rig.consumer().stats().read_ahead == times; });
  }
  // A receive() of the number that has read ahead what rank 1 then failed to publish.
  std::future<StatusOr<ArtifactTree>> mislead(uint64_t number) {
    const uint64_t before = rig.consumer().stats().read_ahead;
    auto received = receive(number);
    REQUIRE(publish(number, 0, 10).ok());
    failToPublish(number, 1);
    REQUIRE(readAhead(before + 1));
    return received;
  }
  // `reads`: of number 1, ahead and when its records were there.
  void check(std::future<StatusOr<ArtifactTree>> received, const TensorView& upper, const TensorView& lower,
             uint64_t reads) {
    fake->release(Side::kProducer);
    check(received.get(), upper, lower);
    CHECK(rig.consumer().stats().read_ahead + rig.consumer().stats().reread == reads);
  }
  static void check(const StatusOr<ArtifactTree>& got, const TensorView& upper, const TensorView& lower) {
    REQUIRE(got.status().ToString() == "OK");
    std::vector<float> expected = elementsOf<float>(upper);
    const std::vector<float> rest = elementsOf<float>(lower);
    expected.insert(expected.end(), rest.begin(), rest.end());
    CHECK(elementsOf<float>(*got->getIf<TensorView>()) == expected);
  }
  static TensorView half(float first) { return floats({4, 8}, first); }
};

TEST_CASE("channel: what all ranks have filled is read before its records come, and once [C21]", "[channel][fault]") {
  HalvesRig it;
  auto received = it.receive(1);
  REQUIRE(it.publish(1, 0, 10).ok());
  REQUIRE(it.publish(1, 1, 20).ok());
  REQUIRE(it.readAhead(1));
  it.check(std::move(received), it.half(10), it.half(20), 1);
  CHECK(it.rig.consumer().stats().bytes_read == 2 * 8 * 8 * 4);
  CHECK(eventually([&] { return it.rig.producer(1).stats().copied_acks == 2; }));
}

TEST_CASE("channel: what was read ahead and is not what was published is read again [C2][C21]", "[channel][fault]") {
  SECTION("a publication failed after its fill, and the next one took another slot") {
    HalvesRig it;
    auto received = it.mislead(1);
    REQUIRE(it.publish(1, 1, 20).ok());
    it.check(std::move(received), it.half(10), it.half(20), 2);
  }
  SECTION("the other slot had been filled as often") {
    HalvesRig it;
    it.exchange(1);
    const uint64_t before = it.rig.consumer().stats().read_ahead;
    auto received = it.mislead(2);
    REQUIRE(it.publish(2, 1, 20).ok());
    it.check(std::move(received), it.half(10), it.half(20), before + 2);
  }
  SECTION("the next one took the same slot, as the same generation") {
    HalvesRig it(1);
    auto received = it.mislead(1);
    REQUIRE(it.publish(1, 1, 20).ok());
    it.check(std::move(received), it.half(10), it.half(20), 2);
  }
  SECTION("it was the number before, which nobody wants") {
    HalvesRig it(1);
    REQUIRE(it.rig.consumer().discard(SequenceNumber(1), "cancelled").ok());
    auto received = std::async(std::launch::async, [&] { return it.rig.receive(2); });
    REQUIRE(eventually([&] { return it.rig.consumer().stats().pending == 2; }));
    for (const uint32_t rank : {0, 1})
      REQUIRE(it.publish(1, rank, 900).ok());
    REQUIRE(it.readAhead(1));
    it.fake->release(Side::kProducer);
    for (const uint32_t rank : {0, 1})
      REQUIRE(it.publish(2, rank, 10 + 10 * static_cast<float>(rank)).ok());
    it.check(received.get(), it.half(10), it.half(20));
  }
  SECTION("the next one has another shape") {
    HalvesRig it;
    auto received = it.mislead(1);
    const TensorView shorter = floats({3, 8}, 20);
    REQUIRE(it.rig.publish(1, leaf(shorter), 1).ok());
    it.check(std::move(received), it.half(10), shorter, 2);
  }
  SECTION("a rank gave the number up") {
    HalvesRig it;
    auto received = it.mislead(1);
    REQUIRE(it.rig.producer(1).abort(SequenceNumber(1), absl::InternalError("gave up")).ok());
    it.fake->release(Side::kProducer);
    CHECK(received.get().status().message() == "gave up");
    REQUIRE(it.publish(2, 0, 30).ok());
    REQUIRE(it.publish(2, 1, 40).ok());
    it.check(it.rig.receive(2), it.half(30), it.half(40));
  }
}

// One producer rank; number 0 has been received, messages of the producer are held, and number 1 is waited for.
struct WaitingRig : FakeRig {
  explicit WaitingRig(FaultPoints::Action while_reading_ahead) {
    REQUIRE(publish(0).ok());
    REQUIRE(rig.receive(0).ok());
    rig.faults().arm("channel.consumer.reading_ahead", 0, std::move(while_reading_ahead));
    fake->hold(Side::kProducer);
    received = std::async(std::launch::async, [this] { return rig.receive(1); });
    REQUIRE(eventually([&] { return rig.consumer().stats().pending == 1; }));
  }
  static void checkIs(const StatusOr<ArtifactTree>& got, float first) {
    REQUIRE(got.status().ToString() == "OK");
    CHECK(elementsOf<float>(*got->getIf<TensorView>()) == elementsOf<float>(floats({64}, first)));
  }
  std::future<StatusOr<ArtifactTree>> received;
};

TEST_CASE("channel: what happens while something is read ahead does no harm [C13][C21]", "[channel][fault]") {
  SECTION("the next number is filled, and is not taken for this one") {
    FakeRig* rig = nullptr;
    std::future<Status> next;
    WaitingRig it([&] {
      rig->fake->release(Side::kProducer);
      if (!next.valid()) next = std::async(std::launch::async, [&] { return rig->publish(2); });
      next.wait();
      return absl::OkStatus();
    });
    rig = &it;
    REQUIRE(it.publish(1).ok());
    WaitingRig::checkIs(it.received.get(), 1);
    CHECK(it.rig.consumer().stats().reread == 0);
    CHECK(next.get().ok());
    WaitingRig::checkIs(it.rig.receive(2), 2);
  }
  SECTION("the channel is closed") {
    FakeRig* rig = nullptr;
    WaitingRig it([&] {
      rig->rig.consumer().close();
      return absl::OkStatus();
    });
    rig = &it;
    REQUIRE(it.publish(1).ok());
    CHECK(it.received.get().status().code() == StatusCode::kCancelled);
    it.fake->release(Side::kProducer);
    CHECK(it.rig.closeAll().ok());
  }
  SECTION("it fails, or throws, and is done again") {
    const bool throws = GENERATE(false, true);
    WaitingRig it([throws]() -> Status {
      if (throws) throw std::runtime_error("injected");
      return absl::InternalError("injected");
    });
    REQUIRE(it.publish(1).ok());
    REQUIRE(eventually([&] { return it.rig.faults().hits("channel.consumer.reading_ahead") == 1; }));
    it.fake->release(Side::kProducer);
    WaitingRig::checkIs(it.received.get(), 1);
    CHECK(it.rig.consumer().stats().read_ahead == 0);
  }
}

TEST_CASE("channel: artifacts that are never like the last are read ahead once [C21]", "[channel][fault]") {
  FakeRig it;
  const auto tree = [](uint64_t number) {
    const auto scalar = static_cast<int64_t>(number);
    return dict({{"x", leaf(floats({64}, static_cast<float>(number)))}, {"scalar", ArtifactTree::Value(scalar)}});
  };
  REQUIRE(it.rig.publish(0, tree(0)).ok());
  REQUIRE(it.rig.receive(0).ok());
  for (uint64_t number = 1; number < 5; ++number) {
    it.fake->hold(Side::kProducer);
    auto received = std::async(std::launch::async, [&] { return it.rig.receive(number); });
    REQUIRE(eventually([&] { return it.rig.consumer().stats().pending == 1; }));
    REQUIRE(it.rig.publish(number, tree(number)).ok());
    if (number == 1) REQUIRE(eventually([&] { return it.rig.consumer().stats().read_ahead == 1; }));
    it.fake->release(Side::kProducer);
    REQUIRE(received.get().ok());
  }
  CHECK(it.rig.consumer().stats().read_ahead == 1);
  CHECK(it.rig.consumer().stats().reread == 1);
}

// What becomes of each number, by its own random numbers: the same for all sides.
struct Fate {
  explicit Fate(uint64_t number) {
    std::mt19937 random(static_cast<uint32_t>(number));
    fails_first = {draw(random, 0, 5) == 0, draw(random, 0, 5) == 0};
    aborted = draw(random, 0, 9) == 0;
    discarded = draw(random, 0, 4) == 0;
    rows = draw(random, 0, 9) == 0 ? 3 : 4;
  }
  std::array<bool, 2> fails_first{};  // of each rank
  bool aborted = false;
  bool discarded = false;
  int64_t rows = 4;  // of each half
};

TEST_CASE(
    "channel: whatever fails, is given up, discarded or of another shape, only what was published is received "
    "[C2][C21]",
    "[channel][fault]") {
  constexpr uint64_t kNumbers = 1500;
  ChannelSpec spec = smallSpec();
  spec.producer_ranks = 2;
  spec.producer_shard_dim = 0;
  spec.profiles_max = 2;
  spec.unpooled_bytes_max = 1 << 16;
  FakeRig it(spec);
  const auto half = [](uint64_t number, uint32_t rank, int64_t rows) {
    return floats({rows, 8}, static_cast<float>(10'000 * rank + number));
  };
  const auto produce = [&](uint32_t rank) {
    Status first_failure;
    for (uint64_t number = 0; number < kNumbers && first_failure.ok(); ++number) {
      const Fate fate(number);
      // Its first leaf is filled before the second one turns out to have no place. Torn reads of it are thrown away,
      // and are no business of a sanitizer.
      if (fate.fails_first[rank] && !kThreadSanitized) {
        const ArtifactTree beyond =
            dict({{"x", leaf(half(90'000, rank, fate.rows))}, {"y", leaf(floats({64, 1024}, 0))}});
        if (it.rig.publish(number, beyond, rank).ok()) return absl::InternalError("published beyond its bound");
      }
      first_failure = fate.aborted ? it.rig.producer(rank).abort(SequenceNumber(number), absl::AbortedError("given up"))
                                   : it.rig.publish(number, leaf(half(number, rank, fate.rows)), rank);
    }
    return first_failure;
  };
  std::array<std::future<Status>, 2> producing;
  for (const uint32_t rank : {0, 1})
    producing[rank] = std::async(std::launch::async, produce, rank);
  for (uint64_t number = 0; number < kNumbers; ++number) {
    CAPTURE(number);
    const Fate fate(number);
    if (fate.discarded) {
      REQUIRE(it.rig.consumer().discard(SequenceNumber(number), "cancelled").ok());
      continue;
    }
    const auto got = it.rig.receive(number);
    if (fate.aborted) {
      REQUIRE(got.status().code() == StatusCode::kAborted);
    } else {
      HalvesRig::check(got, half(number, 0, fate.rows), half(number, 1, fate.rows));
    }
  }
  for (auto& ended : producing)
    CHECK(ended.get().ToString() == "OK");
}

TEST_CASE("channel: what says that it is like the last artifact, and is not, ends the channel [C8][C20]",
          "[channel][fault]") {
  using Change = std::function<void(v1::Again&)>;
  const std::pair<const char*, Change> changes[] = {
      {"slot", [](v1::Again& again) { again.set_slots(0, 2); }},
      {"future generation", [](v1::Again& again) { again.set_generations(0, 9); }},
      {"no slot", [](v1::Again& again) { again.clear_slots(); }},
      {"no generation", [](v1::Again& again) { again.clear_generations(); }},
      {"a slot more", [](v1::Again& again) { again.add_slots(0); }},
      {"a generation more", [](v1::Again& again) { again.add_generations(1); }},
  };
  for (const auto& [name, corrupt] : changes) {
    DYNAMIC_SECTION(name) {
      FakeRig it;
      REQUIRE(it.publish(0).ok());
      REQUIRE(it.rig.receive(0).ok());
      change(it, Side::kProducer, [&](v1::Message& message) {
        if (message.has_again()) corrupt(*message.mutable_again());
        return message.has_again();
      });
      REQUIRE(it.publish(1).ok());
      CHECK(it.rig.receive(1).status().code() == StatusCode::kInternal);
      CHECK(eventually([&] { return it.rig.producerHeard().failures().size() == 1; }));
    }
  }
  SECTION("there was none") {
    FakeRig it;
    change(it, Side::kProducer, [&](v1::Message& message) {
      if (!message.has_publication()) return false;
      message.mutable_again()->set_sequence(0);
      return true;
    });
    REQUIRE(it.publish(0).ok());
    CHECK(it.rig.receive(0).status().code() == StatusCode::kInternal);
  }
}

TEST_CASE("channel: a token part out of bounds ends the channel, not the process [C8][C18]", "[channel][fault]") {
  using Change = std::function<void(v1::TokenPart&)>;
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  const std::pair<const char*, Change> changes[] = {
      {"dim", [](v1::TokenPart& part) { part.set_dim(1u << 31); }},
      {"frames", [](v1::TokenPart& part) { part.set_frames(0); }},
      {"negative rows", [](v1::TokenPart& part) { part.set_rows(-4); }},
      {"overflowing grid",
       [](v1::TokenPart& part) {
         part.set_frames(kMost);
         part.set_rows(kMost);
       }},
      {"another grid", [](v1::TokenPart& part) { part.set_columns(5); }},
      {"cut", [](v1::TokenPart& part) { part.set_cut(3); }},
      {"rows instead", [](v1::TokenPart& part) { part.set_cut(2); }},
      {"begin", [](v1::TokenPart& part) { part.set_begin(-1); }},
      {"end", [](v1::TokenPart& part) { part.set_end(kMost); }},
  };
  for (const auto& [name, corrupt] : changes) {
    DYNAMIC_SECTION(name) {
      FakeRig it;
      change(it, Side::kProducer, [&](v1::Message& message) {
        if (message.has_publication()) corrupt(*message.mutable_publication()->mutable_leaves(0)->mutable_tokens());
        return message.has_publication();
      });
      TensorView tokens = floats({64, 2});
      tokens.tokens = TokenPart::whole(0, {4, 4, 4});
      REQUIRE(it.rig.publish(0, leaf(tokens)).ok());
      CHECK(it.rig.receive(0).status().code() == StatusCode::kInternal);
      CHECK(eventually([&] { return it.rig.producerHeard().failures().size() == 1; }));
    }
  }
}

TEST_CASE("channel: a pool that does not add up ends the channel [C8]", "[channel][fault]") {
  using Change = std::function<void(v1::PoolAnnounce&)>;
  const std::pair<const char*, Change> changes[] = {
      {"profile", [](v1::PoolAnnounce& p) { p.set_profile(8); }},
      {"stride", [](v1::PoolAnnounce& p) { p.set_slot_stride(1); }},
      {"bytes", [](v1::PoolAnnounce& p) { p.set_pool_bytes(1ull << 60); }},
      {"desc", [](v1::PoolAnnounce& p) { p.mutable_desc()->set_shape(0, 0); }},
      {"handle", [](v1::PoolAnnounce& p) { p.set_handle("no such memory"); }},
  };
  for (const auto& [name, corrupt] : changes) {
    DYNAMIC_SECTION(name) {
      FakeRig it;
      change(it, Side::kProducer, [&](v1::Message& message) {
        if (message.has_pool_announce()) corrupt(*message.mutable_pool_announce());
        return message.has_pool_announce();
      });
      it.publish(0).IgnoreError();  // the announcement goes first, and may have ended the channel already
      CHECK_FALSE(it.rig.receive(0).ok());
      CHECK(eventually([&] { return it.rig.consumerHeard().failures().size() == 1; }));
    }
  }
}

TEST_CASE("channel: messages that are stale are dropped and counted [C14]", "[channel][fault]") {
  FakeRig it;
  std::string first;
  it.fake->tamper(Side::kProducer, [&](std::string& bytes) {
    if (first.empty() && bytes.find("abc") == std::string::npos) first = bytes;
    return true;
  });
  REQUIRE(it.rig.publish(0, ArtifactTree::Value(int64_t{5})).ok());
  REQUIRE(it.rig.receive(0).ok());
  it.fake->inject(Side::kProducer, first);  // the same publication again
  v1::Message message;
  REQUIRE(message.ParseFromString(first));
  message.set_epoch(2);  // of the group's last life
  it.fake->inject(Side::kProducer, message.SerializeAsString());
  CHECK(eventually([&] { return it.rig.consumer().stats().stale_dropped == 2; }));
  v1::Message doorbell;
  doorbell.set_epoch(it.rig.spec().consumer_epoch.value);
  doorbell.mutable_doorbell()->set_sequence(0);
  it.fake->inject(Side::kConsumer, doorbell.SerializeAsString());
  doorbell.set_epoch(4);
  it.fake->inject(Side::kConsumer, doorbell.SerializeAsString());
  CHECK(eventually([&] { return it.rig.producer().stats().stale_dropped == 2; }));
  REQUIRE(it.publish(1).ok());
  CHECK(it.rig.receive(1).ok());
}

TEST_CASE("channel: a doorbell without its words is a broken peer [C3]", "[channel][fault]") {
  FakeRig it;
  REQUIRE(it.publish(0).ok());
  v1::Message doorbell;
  doorbell.set_epoch(it.rig.spec().consumer_epoch.value);
  doorbell.mutable_doorbell()->set_sequence(0);
  it.fake->inject(Side::kConsumer, doorbell.SerializeAsString());
  CHECK(eventually([&] { return it.rig.producerHeard().failures().size() == 1; }));
  CHECK(it.publish(1).code() == StatusCode::kInternal);
}

TEST_CASE("channel: random bytes from a peer never crash [C8]", "[channel][fault]") {
  const uint32_t seed = testSeed();
  CAPTURE(seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 40; ++round) {
    FakeRig it;
    const Side from = round % 2 == 0 ? Side::kProducer : Side::kConsumer;
    it.fake->tamper(from, [&random](std::string& bytes) {
      for (int i = 0; i < 3; ++i)
        bytes[random() % bytes.size()] = static_cast<char>(random());
      return true;
    });
    // Whatever comes of it, calls end and both sides can be closed.
    WaitOptions wait;
    wait.deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(200);
    for (uint64_t n = 0; n < 4; ++n) {
      TensorView tensor = floats({64});
      if (n % 2 == 1) tensor.tokens = TokenPart::whole(0, {4, 4, 4});
      it.rig.producer().publish(SequenceNumber(n), leaf(tensor), wait).IgnoreError();
      it.rig.consumer().receive(SequenceNumber(n), it.rig.cache(), wait).status().IgnoreError();
    }
    it.fake->tamper(from, nullptr);
    it.fake->kill(Side::kProducer);
    it.fake->kill(Side::kConsumer);
  }
  SUCCEED();
}

TEST_CASE("channel: messages may be late by any time", "[channel][fault]") {
  FakeRig it;
  it.fake->hold(Side::kProducer);
  it.fake->hold(Side::kConsumer);
  REQUIRE(it.publish(0).ok());
  REQUIRE(it.publish(1).ok());
  auto received = std::async(std::launch::async, [&] { return it.rig.receive(0); });
  CHECK(received.wait_for(std::chrono::milliseconds(50)) == std::future_status::timeout);
  it.fake->release(Side::kProducer);
  CHECK(received.get().ok());
  // Acknowledged in the control block, but the doorbell is under way: the slot is not reused.
  CHECK(it.rig.producer().stats().slots_in_use == 2);
  it.fake->release(Side::kConsumer);
  CHECK(eventually([&] { return it.rig.producer().stats().slots_in_use == 1; }));
  CHECK(it.rig.receive(1).ok());
}

TEST_CASE("channel: want of memory for a pool leaves the channel usable", "[channel][fault]") {
  FakeRig it;
  it.fake->failPools(1);
  CHECK(it.publish(0).code() == StatusCode::kResourceExhausted);
  REQUIRE(it.rig.producer().abort(SequenceNumber(0), absl::ResourceExhaustedError("no pool")).ok());
  CHECK(it.rig.receive(0).status().code() == StatusCode::kResourceExhausted);
  // The consumer can map it neither when it is announced nor when it asks again: the artifact fails.
  it.fake->failImports(2, StatusCode::kResourceExhausted);
  REQUIRE(it.publish(1).ok());
  CHECK(it.rig.receive(1).status().code() == StatusCode::kResourceExhausted);
  CHECK(eventually([&] { return it.rig.producer().stats().discarded_acks == 1; }));
  // With memory again the very next one arrives: it asks for the pool and waits for the answer.
  REQUIRE(it.publish(2).ok());
  const auto got = it.rig.receive(2);
  REQUIRE(got.status().ToString() == "OK");
  CHECK(elementsOf<float>(*got->getIf<TensorView>())[0] == 2);
  CHECK(it.rig.consumer().stats().pools_mapped == 1);
}

TEST_CASE("channel: what a peer exported and is gone means that the peer is [C15]", "[channel][fault]") {
  FakeRig it;
  it.fake->failImports(1, StatusCode::kUnavailable);
  it.publish(0).IgnoreError();  // the announcement goes first, and may have ended the channel already
  const Status received = it.rig.receive(0).status();
  CHECK(received.code() == StatusCode::kUnavailable);
  CHECK(std::string(received.message()).find("is gone") != std::string::npos);
  REQUIRE(eventually([&] { return it.rig.consumerHeard().failures().size() == 1; }));
  CHECK(it.rig.consumerHeard().failures()[0].code() == StatusCode::kUnavailable);
}

TEST_CASE("channel: a peer that does not read fills a bounded queue, then counts as dead [C10]", "[channel][fault]") {
  FakeRig it;
  it.fake->block(Side::kProducer, true);
  uint64_t number = 0;
  while (number < 2 * kOutboxFramesMax &&
         it.rig.producer().abort(SequenceNumber(number), absl::CancelledError("")).ok()) {
    ++number;
  }
  CHECK(number <= kOutboxFramesMax + 1);
  REQUIRE(eventually([&] { return it.rig.producerHeard().failures().size() == 1; }));
  CHECK(it.rig.producerHeard().failures()[0].code() == StatusCode::kResourceExhausted);
  it.fake->block(Side::kProducer, false);
  it.fake->kill(Side::kProducer);
  it.fake->kill(Side::kConsumer);
}

TEST_CASE("channel: memory is bounded by the profiles and given back at the end [C9]", "[channel][fault]") {
  const std::shared_ptr<FakeBackend> fake = FakeBackend::make();
  {
    ChannelSpec spec = smallSpec();
    spec.profiles_max = 2;
    spec.unpooled_bytes_max = 3 * kSlotAlignment;
    Rig rig(ContractBackend{"fake", fake, [](const TempDir& dir, uint32_t) { return dir.file("a"); }}, spec);
    for (uint64_t n = 0; n < 20; ++n) {
      REQUIRE(rig.publish(n, leaf(floats({static_cast<int64_t>(100 + n)}))).ok());
      REQUIRE(rig.receive(n).ok());
      // Two pools, the buffers under way, the control block.
      CHECK(fake->bytesAllocated() <= 2 * kPoolGranularity + spec.unpooled_bytes_max + 65'536);
    }
    CHECK(rig.producer().stats().pools == 2);
    CHECK(eventually([&] { return fake->bytesAllocated() <= 2 * kPoolGranularity + 65'536; }));
  }
  CHECK(fake->bytesAllocated() == 0);
}

}  // namespace latentd::channel::testing
