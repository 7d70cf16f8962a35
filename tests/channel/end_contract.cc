#include <functional>
#include <future>

#include "tests/channel/channel_contract.h"
#include "tests/channel/tensors.h"
#include "tests/support/catch.h"

namespace latentd::channel::testing {
namespace {

using absl::StatusCode;
using std::chrono::milliseconds;

WaitOptions within(milliseconds time) {
  WaitOptions wait;
  wait.deadline = std::chrono::steady_clock::now() + time;
  return wait;
}

// On the rig's clock, and above what a machine that is busy adds to it by itself.
constexpr milliseconds kStill{60'000};

ChannelSpec impatientSpec() {
  ChannelSpec spec = smallSpec();
  spec.progress_timeout = kStill;
  return spec;
}

// For calls that end by something else.
WaitOptions endless(Rig& rig) {
  WaitOptions wait;
  wait.deadline = rig.clock().now() + 1000 * kStill;
  return wait;
}

// Lets the call's time-out pass, which begins when the call waits.
template <class Result>
Result passTimeout(Rig& rig, std::future<Result> call) {
  const auto end = soon();
  while (call.wait_for(milliseconds(5)) != std::future_status::ready) {
    REQUIRE(std::chrono::steady_clock::now() < end);
    rig.clock().advance(kStill);
  }
  return call.get();
}

// Twelve thirds of the time-out go by while the call waits, and its peer moves before each.
template <class Result>
void moveOn(Rig& rig, std::future<Result>& call, const std::function<void()>& progress) {
  for (int i = 0; i < 12; ++i) {
    progress();
    rig.clock().advance(kStill / 3);
    CHECK(call.wait_for(milliseconds(20)) == std::future_status::timeout);
  }
}

void waitsForWhatIsNotThereYet(const ContractBackend& backend) {
  Rig rig(backend);
  std::future<StatusOr<ArtifactTree>> early = std::async(std::launch::async, [&] { return rig.receive(0); });
  CHECK(early.wait_for(milliseconds(50)) == std::future_status::timeout);
  REQUIRE(rig.publish(0, leaf(floats({4}, 3))).ok());
  REQUIRE(early.wait_for(kPatience) == std::future_status::ready);
  CHECK(elementsOf<float>(*early.get()->getIf<TensorView>())[0] == 3);
  // An abort ends the wait as well.
  early = std::async(std::launch::async, [&] { return rig.receive(1); });
  REQUIRE(rig.producer().abort(SequenceNumber(1), absl::InternalError("stage broke")).ok());
  REQUIRE(early.wait_for(kPatience) == std::future_status::ready);
  CHECK(early.get().status().code() == StatusCode::kInternal);
}

void cancelsWaits(const ContractBackend& backend) {
  Rig rig(backend);
  std::stop_source stop;
  WaitOptions wait;
  wait.cancel = stop.get_token();
  auto receiving = std::async(std::launch::async,
                              [&] { return rig.consumer().receive(SequenceNumber(0), rig.cache(), wait).status(); });
  CHECK(receiving.wait_for(milliseconds(30)) == std::future_status::timeout);
  stop.request_stop();
  REQUIRE(receiving.wait_for(kPatience) == std::future_status::ready);
  CHECK(receiving.get().code() == StatusCode::kCancelled);
  // The number is still open, and so is the channel.
  REQUIRE(rig.publish(0, leaf(floats({4}))).ok());
  REQUIRE(rig.publish(1, leaf(floats({4}))).ok());
  CHECK(rig.producer().publish(SequenceNumber(2), leaf(floats({4})), wait).code() == StatusCode::kCancelled);
  CHECK(rig.receive(0).ok());
  REQUIRE(rig.publish(2, leaf(floats({4}))).ok());
  CHECK(rig.receive(1).ok());
  CHECK(rig.receive(2).ok());
}

void callersDeadlinesEndCallsOnly(const ContractBackend& backend) {
  Rig rig(backend);
  CHECK(rig.consumer().receive(SequenceNumber(0), rig.cache(), within(milliseconds(20))).status().code() ==
        StatusCode::kDeadlineExceeded);
  CHECK(rig.consumer().discardAndWait(SequenceNumber(1), "cancelled", within(milliseconds(20))).code() ==
        StatusCode::kDeadlineExceeded);
  REQUIRE(rig.publish(0, leaf(floats({4}))).ok());
  REQUIRE(rig.publish(1, leaf(floats({4}))).ok());  // given back at once: it was discarded
  REQUIRE(rig.publish(2, leaf(floats({4}))).ok());
  CHECK(rig.producer().publish(SequenceNumber(3), leaf(floats({4})), within(milliseconds(20))).code() ==
        StatusCode::kDeadlineExceeded);
  CHECK(rig.receive(0).ok());
  CHECK(rig.receive(2).ok());
}

void stillConsumersTimeOut(const ContractBackend& backend) {
  Rig rig(backend, impatientSpec());
  REQUIRE(rig.publish(0, leaf(floats({4}))).ok());
  REQUIRE(rig.publish(1, leaf(floats({4}))).ok());
  const Status stuck = passTimeout(rig, std::async(std::launch::async, [&, wait = endless(rig)] {
                                     return rig.producer().publish(SequenceNumber(2), leaf(floats({4})), wait);
                                   }));
  CHECK(stuck.code() == StatusCode::kDeadlineExceeded);
  // Sticky, and told to the other side.
  CHECK(rig.publish(3, leaf(floats({4}))) == stuck);
  CHECK(rig.producer().abort(SequenceNumber(4), absl::CancelledError("")) == stuck);
  CHECK(eventually([&] { return rig.consumerHeard().failures().size() == 1; }));
  CHECK(rig.receive(0).status().code() == StatusCode::kUnavailable);
  CHECK(rig.producerHeard().failures() == std::vector<Status>{stuck});
}

void movingConsumersDoNot(const ContractBackend& backend) {
  Rig rig(backend, impatientSpec());
  REQUIRE(rig.publish(0, leaf(floats({4}))).ok());
  REQUIRE(rig.publish(1, leaf(floats({4}))).ok());
  auto blocked = std::async(std::launch::async, [&, wait = endless(rig)] {
    return rig.producer().publish(SequenceNumber(2), leaf(floats({4})), wait);
  });
  moveOn(rig, blocked, [&] { rig.consumer().noteProgress(); });
  CHECK(rig.receive(0).ok());
  CHECK(blocked.get().ok());
}

void stillProducersTimeOut(const ContractBackend& backend) {
  Rig rig(backend, impatientSpec());
  const auto receive = [&](uint64_t number) {
    return std::async(std::launch::async, [&rig, number, wait = endless(rig)] {
      return rig.consumer().receive(SequenceNumber(number), rig.cache(), wait);
    });
  };
  auto moving = receive(0);
  moveOn(rig, moving, [&] { rig.producer().noteProgress(); });
  REQUIRE(rig.publish(0, leaf(floats({4}))).ok());
  CHECK(moving.get().ok());
  const auto stuck = passTimeout(rig, receive(1));
  CHECK(stuck.status().code() == StatusCode::kDeadlineExceeded);
  CHECK(rig.receive(2).status() == stuck.status());
  CHECK(eventually([&] { return rig.producerHeard().failures().size() == 1; }));
  CHECK(rig.publish(1, leaf(floats({4}))).code() == StatusCode::kUnavailable);
}

void consumersMayEndFirst(const ContractBackend& backend) {
  Rig rig(backend);
  REQUIRE(rig.publish(0, leaf(floats({4}))).ok());
  REQUIRE(rig.publish(1, leaf(floats({4}))).ok());
  auto blocked = std::async(std::launch::async, [&] { return rig.publish(2, leaf(floats({4}))); });
  CHECK(rig.consumer().join(soon()).code() == StatusCode::kFailedPrecondition);
  rig.consumer().close();
  CHECK(rig.consumer().join(soon()).ToString() == "OK");
  CHECK(blocked.get().code() == StatusCode::kUnavailable);
  CHECK(rig.receive(0).status().code() == StatusCode::kCancelled);
  CHECK(eventually([&] { return rig.producerHeard().retirements() == 1; }));
  CHECK(rig.producerHeard().failures().empty());
  rig.producer().close();
  CHECK(rig.producer().join(soon()).ok());
  CHECK(rig.producer().join(soon()).ok());
}

void producersMayEndFirst(const ContractBackend& backend) {
  ChannelSpec spec = smallSpec();
  spec.producer_ranks = 2;
  spec.producer_shard_dim = 0;
  spec.consumer_ranks = 2;
  Rig rig(backend, spec);
  REQUIRE(rig.publish(0, leaf(floats({4})), 0).ok());
  auto waiting = std::async(std::launch::async, [&] { return rig.receive(0, 1); });
  std::promise<Status> discarded;
  REQUIRE(rig.consumer(0).discard(SequenceNumber(5), "x", [&](const Status& s) { discarded.set_value(s); }).ok());
  rig.producer(0).close();
  CHECK(rig.producer(0).join(soon()).ToString() == "OK");
  // The end of one rank is the end of the channel.
  CHECK(waiting.get().status().code() == StatusCode::kUnavailable);
  CHECK(discarded.get_future().get().code() == StatusCode::kUnavailable);
  CHECK(eventually([&] { return rig.publish(0, leaf(floats({4})), 1).code() == StatusCode::kUnavailable; }));
  CHECK(eventually([&] { return rig.consumerHeard().retirements() == 2; }));
  CHECK(rig.consumerHeard().failures().empty());
}

void borrowedArtifactsHoldUpTheEnd(const ContractBackend& backend) {
  Rig rig(backend);
  REQUIRE(rig.publish(0, leaf(floats({4}, 9))).ok());
  auto borrowed = rig.consumer().borrow(SequenceNumber(0), within(milliseconds(20'000)));
  REQUIRE(borrowed.ok());
  rig.producer().close();
  CHECK(rig.producer().join(std::chrono::steady_clock::now() + milliseconds(50)).code() ==
        StatusCode::kDeadlineExceeded);
  rig.consumer().close();
  CHECK(rig.consumer().join(std::chrono::steady_clock::now() + milliseconds(50)).code() ==
        StatusCode::kDeadlineExceeded);
  // Still readable after both sides ended.
  CHECK(elementsOf<float>(*borrowed->tree().getIf<TensorView>())[0] == 9);
  borrowed->release();
  CHECK(rig.consumer().join(soon()).ok());
  CHECK(rig.producer().join(soon()).ok());
}

void borrowedArtifactsMayOutliveTheirConsumer(const ContractBackend& backend) {
  std::optional<HeldArtifact> kept;
  Rig rig(backend);
  REQUIRE(rig.publish(0, leaf(floats({4}, 9))).ok());
  auto borrowed = rig.consumer().borrow(SequenceNumber(0), within(milliseconds(20'000)));
  REQUIRE(borrowed.ok());
  kept = *std::move(borrowed);
  rig.dropConsumers();
  CHECK(elementsOf<float>(*kept->tree().getIf<TensorView>())[0] == 9);
  kept->release();
}

void refusesStrangers(const ContractBackend& backend) {
  Rig rig(backend);
  const auto open = [&](const std::function<void(ChannelSpec&)>& change, uint32_t rank = 0) {
    ChannelSpec spec = rig.spec();
    change(spec);
    return openConsumer(spec, Rank(rank), rig.addresses(), Device{}, rig.context()).status();
  };
  const std::pair<const char*, std::function<void(ChannelSpec&)>> changes[] = {
      {"producer_epoch", [](ChannelSpec& spec) { spec.producer_epoch = Epoch(2); }},
      {"consumer_epoch", [](ChannelSpec& spec) { spec.consumer_epoch = Epoch(6); }},
      {"producer_ranks", [](ChannelSpec& spec) { spec.producer_ranks = 2; }},
      {"consumer_ranks", [](ChannelSpec& spec) { spec.consumer_ranks = 2; }},
      {"channel_id", [](ChannelSpec& spec) { spec.channel_id = 8; }},
      {"edge", [](ChannelSpec& spec) { spec.edge = "a.out->c.in"; }},
      {"slots", [](ChannelSpec& spec) { spec.slots = 3; }},
      {"profiles_max", [](ChannelSpec& spec) { spec.profiles_max = 9; }},
      {"consumer_shard_dim", [](ChannelSpec& spec) { spec.consumer_shard_dim = 0; }},
      {"consumer_tokens", [](ChannelSpec& spec) { spec.consumer_tokens = TokenCut::kRows; }},
  };
  for (const auto& [field, change] : changes) {
    const Status refused = open(change);
    CAPTURE(field, refused.ToString());
    CHECK(refused.code() == StatusCode::kFailedPrecondition);
    CHECK(messageOf(refused).find(field) != std::string::npos);
  }
  // A second connection of a rank that is bound.
  CHECK(open([](ChannelSpec&) {}).code() == StatusCode::kAlreadyExists);
  CHECK(open([](ChannelSpec&) {}, 1).code() == StatusCode::kInvalidArgument);
  CHECK(rig.producer().stats().handshakes_refused == std::size(changes) + 1);
  CHECK(rig.producer().stats().stale_dropped == 2);
  // The channel did not notice.
  REQUIRE(rig.publish(0, leaf(floats({4}))).ok());
  CHECK(rig.receive(0).ok());
}

void needsSomebodyToListen(const ContractBackend& backend) {
  Rig rig(backend);
  const TempDir elsewhere;
  CHECK(openConsumer(rig.spec(), Rank(0), {backend.address(elsewhere, 9)}, Device{}, rig.context()).status().code() ==
        StatusCode::kUnavailable);
  CHECK(openProducer(rig.spec(), Rank(0), rig.addresses()[0], rig.context()).status().code() ==
        StatusCode::kAlreadyExists);
  ChannelSpec wrong = rig.spec();
  wrong.slots = 0;
  CHECK(openProducer(wrong, Rank(0), backend.address(elsewhere, 1), rig.context()).status().code() ==
        StatusCode::kInvalidArgument);
}

void publishesBeforeAnybodyIsBound(const ContractBackend& backend) {
  SteadyClock clock;
  LoopThread loop(clock, "early-loop");
  const TempDir dir;
  const ChannelContext context{backend.backend, &loop.loop(), &clock, nullptr};
  const std::string address = backend.address(dir, 50);
  auto producer = openProducer(smallSpec(), Rank(0), address, context);
  REQUIRE(producer.ok());
  REQUIRE((*producer)->publish(SequenceNumber(0), leaf(floats({4}, 1))).ok());
  REQUIRE((*producer)->publish(SequenceNumber(1), leaf(floats({4}, 2))).ok());
  REQUIRE((*producer)->abort(SequenceNumber(2), absl::CancelledError("")).ok());
  CHECK_FALSE((*producer)->bound());
  auto consumer = openConsumer(smallSpec(), Rank(0), {address}, Device{}, context);
  REQUIRE(consumer.ok());
  BufferCache cache(0);
  CHECK((*consumer)->receive(SequenceNumber(0), cache).ok());
  CHECK((*consumer)->receive(SequenceNumber(1), cache).ok());
  CHECK((*consumer)->receive(SequenceNumber(2), cache).status().code() == StatusCode::kCancelled);
}

}  // namespace

std::vector<ContractCase> endContract() {
  return {
      {"a consumer may wait before the producer publishes", waitsForWhatIsNotThereYet},
      {"waits can be cancelled and leave the channel as it was", cancelsWaits},
      {"a caller's deadline ends the call only", callersDeadlinesEndCallsOnly},
      {"a consumer that stands still is a time-out, and failure is sticky [C11]", stillConsumersTimeOut},
      {"waiting for a slot while the consumer moves is none [C11]", movingConsumersDoNot},
      {"a producer that stands still is a time-out, one that moves is none [C11]", stillProducersTimeOut},
      {"consumers may end first [C13]", consumersMayEndFirst},
      {"producers may end first [C13]", producersMayEndFirst},
      {"a borrowed artifact holds up the end [C13]", borrowedArtifactsHoldUpTheEnd, true},
      {"a borrowed artifact may outlive its consumer [C13]", borrowedArtifactsMayOutliveTheirConsumer, true},
      {"a stranger is refused with the field that differs [C14]", refusesStrangers},
      {"endpoints that cannot open say why", needsSomebodyToListen},
      {"what is published before a consumer is bound arrives", publishesBeforeAnybodyIsBound},
  };
}

}  // namespace latentd::channel::testing
