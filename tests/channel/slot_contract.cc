#include <future>

#include "channel/limits.h"
#include "tests/channel/channel_contract.h"
#include "tests/channel/tensors.h"
#include "tests/support/catch.h"

namespace latentd::channel::testing {
namespace {

using absl::StatusCode;

void keepsSlotsUntilAcknowledged(const ContractBackend& backend) {
  Rig rig(backend);
  REQUIRE(rig.publish(0, leaf(floats({64}, 100))).ok());
  REQUIRE(rig.publish(1, leaf(floats({64}, 200))).ok());
  // Both slots are unread: the third publication blocks and touches neither.
  std::future<Status> third = std::async(std::launch::async, [&] { return rig.publish(2, leaf(floats({64}, 300))); });
  CHECK(third.wait_for(std::chrono::milliseconds(100)) == std::future_status::timeout);
  CHECK(elementsOf<float>(*rig.receive(0)->getIf<TensorView>()) == elementsOf<float>(floats({64}, 100)));
  REQUIRE(third.wait_for(kPatience) == std::future_status::ready);
  CHECK(third.get().ok());
  CHECK(elementsOf<float>(*rig.receive(1)->getIf<TensorView>()) == elementsOf<float>(floats({64}, 200)));
  CHECK(elementsOf<float>(*rig.receive(2)->getIf<TensorView>()) == elementsOf<float>(floats({64}, 300)));
  CHECK(rig.producer().stats().slot_wait >= std::chrono::milliseconds(90));
}

void waitsForEveryConsumer(const ContractBackend& backend) {
  ChannelSpec spec = smallSpec();
  spec.consumer_ranks = 3;
  spec.slots = 1;
  Rig rig(backend, spec);
  REQUIRE(rig.publish(0, leaf(floats({16}))).ok());
  std::future<Status> next = std::async(std::launch::async, [&] { return rig.publish(1, leaf(floats({16}, 50))); });
  REQUIRE(rig.receive(0, 0).ok());
  REQUIRE(rig.receive(0, 2).ok());
  CHECK(next.wait_for(std::chrono::milliseconds(50)) == std::future_status::timeout);
  REQUIRE(rig.consumer(1).discard(SequenceNumber(0), "cancelled").ok());
  REQUIRE(next.wait_for(kPatience) == std::future_status::ready);
  CHECK(next.get().ok());
  CHECK(rig.producer().stats().copied_acks == 2);
  CHECK(rig.producer().stats().discarded_acks == 1);
  for (uint32_t c = 0; c < 3; ++c)
    CHECK(rig.receive(1, c).ok());
}

void abortsWithoutBlocking(const ContractBackend& backend) {
  Rig rig(backend);
  REQUIRE(rig.publish(0, leaf(floats({8}))).ok());
  REQUIRE(rig.publish(1, leaf(floats({8}))).ok());
  // Every slot is taken and numbers before it are unread: still at once, and it may overtake.
  REQUIRE(rig.producer().abort(SequenceNumber(3), absl::InternalError("stage broke")).ok());
  REQUIRE(rig.producer().abort(SequenceNumber(2), absl::CancelledError("")).ok());
  CHECK(rig.producer().abort(SequenceNumber(2), absl::CancelledError("")).code() == StatusCode::kAlreadyExists);
  CHECK(rig.producer().abort(SequenceNumber(4), absl::OkStatus()).code() == StatusCode::kInvalidArgument);
  const auto broken = rig.receive(3);
  CHECK(broken.status().code() == StatusCode::kInternal);
  CHECK(messageOf(broken.status()) == "stage broke");
  CHECK(rig.receive(2).status().code() == StatusCode::kCancelled);
  CHECK(rig.receive(0).ok());
  CHECK(rig.receive(1).ok());
  CHECK(rig.consumer().stats().aborted == 2);
  CHECK(rig.consumer().stats().pending == 0);
  REQUIRE(rig.publish(4, leaf(floats({8}))).ok());
  CHECK(rig.receive(4).ok());
}

void endsNumbersOnce(const ContractBackend& backend) {
  Rig rig(backend);
  REQUIRE(rig.publish(0, leaf(floats({8}))).ok());
  CHECK(rig.publish(0, leaf(floats({8}))).code() == StatusCode::kAlreadyExists);
  CHECK(rig.producer().abort(SequenceNumber(0), absl::CancelledError("")).code() == StatusCode::kAlreadyExists);
  REQUIRE(rig.publish(2, leaf(floats({8}))).ok());
  CHECK(rig.publish(1, leaf(floats({8}))).code() == StatusCode::kInvalidArgument);
  REQUIRE(rig.producer().abort(SequenceNumber(1), absl::CancelledError("")).ok());
  REQUIRE(rig.receive(0).ok());
  CHECK(rig.receive(0).status().code() == StatusCode::kAlreadyExists);
  CHECK(rig.consumer().discard(SequenceNumber(0), "late").code() == StatusCode::kAlreadyExists);
  CHECK(rig.receive(1).status().code() == StatusCode::kCancelled);
  CHECK(rig.receive(1).status().code() == StatusCode::kAlreadyExists);
  CHECK(rig.receive(2).ok());
}

void discardsBeforeAndAfterArrival(const ContractBackend& backend) {
  Rig rig(backend);
  std::promise<Status> early;
  REQUIRE(rig.consumer().discard(SequenceNumber(1), "cancelled", [&](const Status& s) { early.set_value(s); }).ok());
  REQUIRE(rig.publish(0, leaf(floats({8}))).ok());
  REQUIRE(eventually([&] { return rig.consumer().stats().pending == 2; }));
  CHECK(rig.consumer().discardAndWait(SequenceNumber(0), "failed", patient()).ToString() == "OK");
  std::future<Status> discarded = early.get_future();
  CHECK(discarded.wait_for(std::chrono::milliseconds(30)) == std::future_status::timeout);
  REQUIRE(rig.publish(1, leaf(floats({8}))).ok());
  REQUIRE(discarded.wait_for(kPatience) == std::future_status::ready);
  CHECK(discarded.get().ok());
  // An aborted number is given up the same way.
  REQUIRE(rig.consumer().discard(SequenceNumber(2), "cancelled").ok());
  REQUIRE(rig.producer().abort(SequenceNumber(2), absl::CancelledError("")).ok());
  REQUIRE(rig.producer().abort(SequenceNumber(3), absl::CancelledError("")).ok());
  CHECK(rig.consumer().discardAndWait(SequenceNumber(3), "cancelled", patient()).ok());
  CHECK(eventually([&] { return rig.producer().stats().slots_in_use == 0; }));
  CHECK(eventually([&] { return rig.consumer().stats().pending == 0; }));
  CHECK(rig.producer().stats().discarded_acks == 2);
  CHECK(rig.consumer().stats().bytes_read == 0);
  CHECK(rig.consumer().stats().discarded == std::map<std::string, uint64_t>{{"cancelled", 3}, {"failed", 1}});
}

void boundsDiscardReasons(const ContractBackend& backend) {
  Rig rig(backend);
  for (uint64_t n = 0; n < 3 * kDiscardReasonsMax; ++n) {
    REQUIRE(rig.consumer().discard(SequenceNumber(n), "reason " + std::to_string(n)).ok());
  }
  const auto reasons = rig.consumer().stats().discarded;
  CHECK(reasons.size() == kDiscardReasonsMax + 1);
  CHECK(reasons.at("other") == 2 * kDiscardReasonsMax);
}

void boundsPendingNumbers(const ContractBackend& backend) {
  Rig rig(backend);
  for (uint64_t n = 0; n < kPendingArtifactsMax; ++n) {
    REQUIRE(rig.consumer().discard(SequenceNumber(n), "cancelled").ok());
  }
  CHECK(rig.consumer().discard(SequenceNumber(kPendingArtifactsMax), "cancelled").code() ==
        StatusCode::kResourceExhausted);
}

void sendsWithoutPoolsBeyondTheProfiles(const ContractBackend& backend) {
  ChannelSpec spec = smallSpec();
  spec.profiles_max = 1;
  spec.unpooled_bytes_max = 100'000;
  Rig rig(backend, spec);
  REQUIRE(rig.publish(0, leaf(floats({10}))).ok());
  REQUIRE(rig.receive(0).ok());
  // Two tensors without a pool and one with share an artifact.
  REQUIRE(rig.publish(1, dict({{"a", leaf(floats({10}, 1))}, {"b", leaf(longs({4000}, 3))}, {"c", leaf(bytes({7}))}}))
              .ok());
  CHECK(rig.producer().stats().unpooled_bytes > 32'000);
  auto got = rig.receive(1);
  REQUIRE(got.status().ToString() == "OK");
  CHECK(elementsOf<float>(tensorAt(*got, "a")) == elementsOf<float>(floats({10}, 1)));
  CHECK(elementsOf<int64_t>(tensorAt(*got, "b")) == elementsOf<int64_t>(longs({4000}, 3)));
  CHECK(elementsOf<uint8_t>(tensorAt(*got, "c")) == elementsOf<uint8_t>(bytes({7})));
  CHECK(eventually([&] { return rig.producer().stats().unpooled_bytes == 0; }));
  CHECK(rig.producer().stats().pools == 1);
  // More than the bound at once is refused, more than the bound in flight waits.
  const Status refused = rig.publish(2, leaf(bytes({200'000})));
  CHECK(refused.code() == StatusCode::kResourceExhausted);
  REQUIRE(rig.publish(2, leaf(bytes({60'000}))).ok());
  std::future<Status> next = std::async(std::launch::async, [&] { return rig.publish(3, leaf(bytes({70'000}))); });
  CHECK(next.wait_for(std::chrono::milliseconds(50)) == std::future_status::timeout);
  CHECK(rig.consumer().discard(SequenceNumber(2), "cancelled").ok());
  REQUIRE(next.wait_for(kPatience) == std::future_status::ready);
  CHECK(next.get().ok());
  CHECK(rig.receive(3).ok());
  CHECK(rig.producer().stats().unpooled_artifacts == 3);
  CHECK(eventually([&] { return rig.producerHeard().transfers().size() == 4; }));
  CHECK_FALSE(rig.producerHeard().transfers()[1].pooled);
}

void refusesWhatNoFrameHolds(const ContractBackend& backend) {
  Rig rig(backend);
  CHECK(rig.publish(0, ArtifactTree::Value(std::string(200'000, 'x'))).code() == StatusCode::kInvalidArgument);
  ArtifactTree deep;
  for (uint32_t i = 0; i <= kTreeDepthMax; ++i)
    deep = ArtifactTree::Value(ArtifactTree::List{{deep}});
  CHECK(rig.publish(0, deep).code() == StatusCode::kInvalidArgument);
  ArtifactTree::List wide;
  for (uint32_t i = 0; i <= kLeavesMax; ++i)
    wide.items.push_back(leaf(bytes({1})));
  CHECK(rig.publish(0, ArtifactTree::Value(std::move(wide))).code() == StatusCode::kInvalidArgument);
  TensorView negative = floats({4});
  negative.strides = {-1};
  CHECK(rig.publish(0, leaf(negative)).code() == StatusCode::kInvalidArgument);
  TensorView nowhere = floats({4});
  nowhere.data = nullptr;
  CHECK(rig.publish(0, leaf(nowhere)).code() == StatusCode::kInvalidArgument);
  // Nothing was published and nothing is held: the number is still open.
  CHECK(rig.producer().stats().slots_in_use == 0);
  REQUIRE(rig.publish(0, leaf(floats({4}))).ok());
  CHECK(rig.receive(0).ok());
}

class FailingAllocator final : public Allocator {
 public:
  StatusOr<TensorView> allocate(DType, const std::vector<int64_t>&, Device) override {
    return absl::ResourceExhaustedError("no memory here");
  }
};

void survivesAFullConsumer(const ContractBackend& backend) {
  Rig rig(backend);
  FailingAllocator allocator;
  for (uint64_t n = 0; n < 5; ++n) {
    REQUIRE(rig.publish(n, leaf(floats({32}))).ok());
    CHECK(rig.consumer().receive(SequenceNumber(n), allocator, patient()).status().code() ==
          StatusCode::kResourceExhausted);
  }
  REQUIRE(rig.publish(5, leaf(floats({32}, 5))).ok());
  CHECK(rig.receive(5).ok());
  CHECK(rig.consumer().stats().discarded.at("failed") == 5);
}

// Each of two groups publishes to the other before it receives: with slots that are given back by receive() alone, both
// would wait for ever if a full channel stopped the other one too.
void edgesInBothDirectionsDoNotDeadlock(const ContractBackend& backend) {
  ChannelSpec spec = smallSpec();
  Rig there(backend, spec);
  Rig back(backend, spec);
  constexpr uint64_t kRounds = 100;
  const auto group = [&](Rig& out, Rig& in) {
    uint64_t done = 0;
    // Two slots: two publications may be ahead of the other group's reading.
    for (uint64_t n = 0; n < kRounds; ++n) {
      if (!out.publish(n, leaf(floats({256}, static_cast<float>(n)))).ok()) break;
      if (n > 0 && in.receive(n - 1).ok()) ++done;
    }
    if (in.receive(kRounds - 1).ok()) ++done;
    return done;
  };
  auto first = std::async(std::launch::async, group, std::ref(there), std::ref(back));
  auto second = std::async(std::launch::async, group, std::ref(back), std::ref(there));
  CHECK(first.get() == kRounds);
  CHECK(second.get() == kRounds);
}

}  // namespace

std::vector<ContractCase> slotContract() {
  return {
      {"a slot is not reused before it is acknowledged [C3]", keepsSlotsUntilAcknowledged},
      {"a slot waits for every consumer rank, by sign [C3]", waitsForEveryConsumer},
      {"an abort never blocks and its reason arrives [C6]", abortsWithoutBlocking},
      {"every number ends once on each side [C5]", endsNumbersOnce},
      {"a discard gives the slots back, before or after arrival", discardsBeforeAndAfterArrival},
      {"discard reasons are bounded labels", boundsDiscardReasons},
      {"numbers that did not end are bounded [C10]", boundsPendingNumbers},
      {"profiles beyond the bound take the unpooled path, bounded in bytes [C9]", sendsWithoutPoolsBeyondTheProfiles},
      {"an artifact beyond the limits is refused and holds nothing", refusesWhatNoFrameHolds},
      {"a consumer without memory loses its artifact, not the channel", survivesAFullConsumer},
      {"edges in both directions between two groups do not deadlock [C12]", edgesInBothDirectionsDoNotDeadlock},
  };
}

}  // namespace latentd::channel::testing
