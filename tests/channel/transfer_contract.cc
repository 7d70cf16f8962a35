#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <functional>
#include <future>
#include <iterator>
#include <random>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "channel/limits.h"
#include "tests/channel/channel_contract.h"
#include "tests/channel/draw.h"
#include "tests/channel/tensors.h"
#include "tests/support/catch.h"

namespace latentd::channel::testing {
namespace {

void keepsStructure(const ContractBackend& backend) {
  Rig rig(backend);
  const std::string binary("\0\xff\x80 text", 8);
  const ArtifactTree sent = dict({
      {"latents", leaf(floats({2, 3, 4}, 1))},
      {"nested", dict({{"flag", ArtifactTree::Value(true)},
                       {"count", ArtifactTree::Value(int64_t{-7})},
                       {"scale", ArtifactTree::Value(0.25)},
                       {"nothing", ArtifactTree()},
                       {"text", ArtifactTree::Value(binary)}})},
      {"list", ArtifactTree::Value(ArtifactTree::List{{leaf(longs({3}, 5)), ArtifactTree::Value(false)}})},
      {"tuple", ArtifactTree::Value(ArtifactTree::Tuple{{leaf(bytes({5}, 9)), ArtifactTree()}})},
      {"empty", dict({})},
  });
  REQUIRE(rig.publish(0, sent).ToString() == "OK");
  const auto got = rig.receive(0);
  REQUIRE(got.status().ToString() == "OK");
  const auto* entries = got->getIf<ArtifactTree::Dict>();
  REQUIRE(entries != nullptr);
  REQUIRE(entries->entries.size() == 5);
  CHECK(entries->entries[0].first == "latents");
  CHECK(entries->entries[4].first == "empty");
  CHECK(elementsOf<float>(tensorAt(*got, "latents")) == elementsOf<float>(tensorAt(sent, "latents")));
  CHECK(tensorAt(*got, "latents").shape == Shape{2, 3, 4});
  const ArtifactTree& nested = *got->find("nested");
  CHECK(*nested.find("flag")->getIf<bool>() == true);
  CHECK(*nested.find("count")->getIf<int64_t>() == -7);
  CHECK(*nested.find("scale")->getIf<double>() == 0.25);
  CHECK(nested.find("nothing")->getIf<ArtifactTree::Null>() != nullptr);
  CHECK(*nested.find("text")->getIf<std::string>() == binary);
  const auto* list = got->find("list")->getIf<ArtifactTree::List>();
  REQUIRE(list != nullptr);
  CHECK(elementsOf<int64_t>(*list->items[0].getIf<TensorView>()) == std::vector<int64_t>{5, 6, 7});
  CHECK(*list->items[1].getIf<bool>() == false);
  const auto* tuple = got->find("tuple")->getIf<ArtifactTree::Tuple>();
  REQUIRE(tuple != nullptr);
  CHECK(elementsOf<uint8_t>(*tuple->items[0].getIf<TensorView>()) == std::vector<uint8_t>{9, 10, 11, 12, 13});
  CHECK(got->find("empty")->getIf<ArtifactTree::Dict>()->entries.empty());
}

void sendsDuplicatesOnce(const ContractBackend& backend) {
  Rig rig(backend);
  const TensorView tensor = floats({100}, 1);
  const TensorView part = slice(tensor, 0, 0, 50);
  REQUIRE(rig.publish(0, dict({{"a", leaf(tensor)}, {"b", leaf(tensor)}, {"c", leaf(part)}})).ok());
  const auto got = rig.receive(0);
  REQUIRE(got.ok());
  CHECK(tensorAt(*got, "a").data == tensorAt(*got, "b").data);
  CHECK(tensorAt(*got, "a").data != tensorAt(*got, "c").data);
  CHECK(rig.producer().stats().bytes_staged == 400 + 200);
  CHECK(rig.consumer().stats().bytes_read == 400 + 200);
  CHECK(rig.producer().stats().pools == 2);
}

// Remembers what the calls of one hand-off spent their time on.
class Phases final : public HandoffObserver {
 public:
  void onSpan(const HandoffSpan& span) override {
    CHECK(span.start <= span.end);
    CHECK(span.sequence == SequenceNumber(0));
    spans.push_back(span);
  }
  std::vector<HandoffSpan> of(HandoffPhase phase) const {
    std::vector<HandoffSpan> found;
    std::copy_if(spans.begin(), spans.end(), std::back_inserter(found),
                 [&](const HandoffSpan& span) { return span.phase == phase; });
    return found;
  }
  std::vector<HandoffSpan> spans;
};

void tellsWhereItsTimeWent(const ContractBackend& backend) {
  Rig rig(backend);
  Phases phases;
  WaitOptions wait;
  wait.observer = &phases;
  wait.deadline = soon();
  const ArtifactTree sent = dict({{"a", leaf(floats({100}, 1))}, {"b", leaf(longs({3}, 5))}});
  REQUIRE(rig.producer().publish(SequenceNumber(0), sent, wait).ok());
  const auto staging = phases.of(HandoffPhase::kStaging);
  const auto publish = phases.of(HandoffPhase::kPublish);
  REQUIRE(staging.size() == 2);
  REQUIRE(publish.size() == 1);
  CHECK(phases.of(HandoffPhase::kSlotWait).empty());
  CHECK(staging[0].bytes + staging[1].bytes == publish[0].bytes);
  CHECK(publish[0].start <= staging[0].start);
  CHECK(staging[1].end <= publish[0].end);

  REQUIRE(rig.consumer().receive(SequenceNumber(0), rig.cache(), wait).ok());
  const auto waited = phases.of(HandoffPhase::kInputWait);
  const auto copy = phases.of(HandoffPhase::kCopy);
  const auto acknowledge = phases.of(HandoffPhase::kAcknowledge);
  REQUIRE((waited.size() == 1 && copy.size() == 1 && acknowledge.size() == 1));
  CHECK(waited[0].end <= copy[0].start);
  CHECK(copy[0].end <= acknowledge[0].start);
  CHECK(copy[0].bytes == 100 * 4 + 3 * 8);
}

void carriesEmptyThings(const ContractBackend& backend) {
  Rig rig(backend);
  REQUIRE(rig.publish(0, dict({{"none", leaf(floats({3, 0, 2}))}, {"one", leaf(floats({}, 42))}})).ok());
  auto got = rig.receive(0);
  REQUIRE(got.status().ToString() == "OK");
  CHECK(tensorAt(*got, "none").shape == Shape{3, 0, 2});
  CHECK(elementsOf<float>(tensorAt(*got, "one")) == std::vector<float>{42});
  // No storage at all: still acknowledged, in order and bounded.
  for (uint64_t n = 1; n < 100; ++n) {
    REQUIRE(rig.publish(n, ArtifactTree::Value(static_cast<int64_t>(n))).ok());
    got = rig.receive(n);
    REQUIRE(got.ok());
    CHECK(*got->getIf<int64_t>() == static_cast<int64_t>(n));
  }
  CHECK(eventually([&] { return rig.producer().stats().transfers_done == 100; }));
  CHECK(rig.producer().stats().slots_in_use == 0);
}

void gathersStridedSources(const ContractBackend& backend) {
  Rig rig(backend);
  const TensorView base = floats({4, 6, 5});
  TensorView transposed = base;
  transposed.shape = {5, 4, 6};
  transposed.strides = {1, 30, 5};
  TensorView expanded = floats({3, 1}, 7);
  expanded.shape = {3, 4};
  expanded.strides = {1, 0};
  TensorView stepped = base;
  stepped.shape = {4, 3, 5};
  stepped.strides = {30, 10, 1};
  const ArtifactTree sent = dict({{"transposed", leaf(transposed)},
                                  {"expanded", leaf(expanded)},
                                  {"stepped", leaf(stepped)},
                                  {"sliced", leaf(slice(base, 1, 2, 5))}});
  REQUIRE(rig.publish(0, sent).ToString() == "OK");
  const auto got = rig.receive(0);
  REQUIRE(got.status().ToString() == "OK");
  for (const char* key : {"transposed", "expanded", "stepped", "sliced"}) {
    CHECK(tensorAt(*got, key).shape == tensorAt(sent, key).shape);
    CHECK(elementsOf<float>(tensorAt(*got, key)) == elementsOf<float>(tensorAt(sent, key)));
  }
}

// Gives tensors with room between rows.
class PaddingAllocator final : public Allocator {
 public:
  StatusOr<TensorView> allocate(DType dtype, const std::vector<int64_t>& shape, Device device) override {
    TensorView padded = floats({shape[0], shape[1] + 3}, -1);
    padded.dtype = dtype;
    padded.device = device;
    return slice(padded, 1, 1, shape[1] + 1);
  }
};

void fillsStridedTargets(const ContractBackend& backend) {
  ChannelSpec spec = smallSpec();
  spec.consumer_ranks = 2;
  spec.consumer_shard_dim = 1;
  Rig rig(backend, spec);
  const TensorView tensor = floats({4, 5});
  REQUIRE(rig.publish(0, leaf(tensor)).ok());
  PaddingAllocator allocator;
  WaitOptions wait = patient();
  const auto left = rig.consumer(0).receive(SequenceNumber(0), allocator, wait);
  const auto right = rig.consumer(1).receive(SequenceNumber(0), allocator, wait);
  REQUIRE(left.ok());
  REQUIRE(right.ok());
  CHECK(elementsOf<float>(*left->getIf<TensorView>()) == elementsOf<float>(slice(tensor, 1, 0, 3)));
  CHECK(elementsOf<float>(*right->getIf<TensorView>()) == elementsOf<float>(slice(tensor, 1, 3, 5)));
}

void readsInPlace(const ContractBackend& backend) {
  Rig rig(backend);
  REQUIRE(rig.publish(0, dict({{"x", leaf(floats({8, 8}))}, {"y", leaf(longs({2}))}})).ok());
  WaitOptions wait = patient();
  auto borrowed = rig.consumer().borrow(SequenceNumber(0), wait);
  REQUIRE(borrowed.status().ToString() == "OK");
  CHECK(elementsOf<float>(tensorAt(borrowed->tree(), "x")) == elementsOf<float>(floats({8, 8})));
  CHECK(elementsOf<int64_t>(tensorAt(borrowed->tree(), "y")) == std::vector<int64_t>{0, 1});
  CHECK(rig.producer().stats().slots_in_use == 2);
  HeldArtifact moved = *std::move(borrowed);
  moved.release();
  CHECK(eventually([&] { return rig.producer().stats().slots_in_use == 0; }));
  CHECK(rig.consumer().stats().bytes_read == 8 * 8 * 4 + 2 * 8);
  CHECK(rig.consumer().stats().borrowed == 1);
}

void acknowledgesWhatWasTakenOnRelease(const ContractBackend& backend) {
  Rig rig(backend);
  WaitOptions wait = patient();
  REQUIRE(rig.publish(0, leaf(floats({8, 8}))).ok());
  auto taken = rig.consumer().take(SequenceNumber(0), rig.cache(), wait);
  REQUIRE(taken.status().ToString() == "OK");
  const ArtifactTree tree = taken->tree();
  CHECK(rig.producer().stats().slots_in_use == 1);
  CHECK(rig.consumer().take(SequenceNumber(0), rig.cache(), wait).status().code() == absl::StatusCode::kAlreadyExists);
  // Later numbers arrive meanwhile.
  REQUIRE(rig.publish(1, leaf(floats({8, 8}, 50))).ok());
  REQUIRE(rig.receive(1).ok());
  HeldArtifact moved = *std::move(taken);
  moved.release();
  CHECK(eventually([&] { return rig.producer().stats().slots_in_use == 0; }));
  CHECK(rig.producer().stats().copied_acks == 2);
  CHECK(rig.consumer().stats().received == 2);
  // The tensor is the taker's own: its slot is filled again.
  REQUIRE(rig.publish(2, leaf(floats({8, 8}, 100))).ok());
  REQUIRE(rig.publish(3, leaf(floats({8, 8}, 150))).ok());
  CHECK(elementsOf<float>(*tree.getIf<TensorView>()) == elementsOf<float>(floats({8, 8})));
}

void announcesOncePerNumber(const ContractBackend& backend) {
  Rig rig(backend);
  const uint64_t each = backend.backend->asynchronous() ? 1 : 0;
  rig.producer().announce();
  rig.producer().announce();
  CHECK(eventually([&] { return rig.consumer().stats().announced == each; }));
  REQUIRE(rig.producer().abort(SequenceNumber(0), absl::InternalError("stage broke")).ok());
  rig.producer().announce();
  CHECK(eventually([&] { return rig.consumer().stats().announced == 2 * each; }));
  // What was announced too long ago is said again, and a number that nobody announced is by publish().
  rig.clock().advance(10 * kComingFresh);
  REQUIRE(rig.publish(1, leaf(floats({8}))).ok());
  CHECK(rig.receive(1).ok());
  CHECK(rig.consumer().stats().announced == 3 * each);
  REQUIRE(rig.publish(2, leaf(floats({8}))).ok());
  CHECK(rig.receive(2).ok());
  CHECK(rig.consumer().stats().announced == 4 * each);
  // However often it is said: what waits for a consumer is bounded. No slot is taken for it.
  for (uint32_t i = 0; i < 3 * kComingsMax; ++i) {
    rig.clock().advance(10 * kComingFresh);
    rig.producer().announce();
  }
  CHECK(eventually([&] { return rig.producer().stats().slots_in_use == 0; }));
  REQUIRE(rig.publish(3, leaf(floats({8}))).ok());
  CHECK(rig.receive(3).ok());
  CHECK(rig.consumer().stats().announced == (4 + kComingsMax) * each);
}

// Counts what is asked of it, and does something first.
class CountingAllocator final : public Allocator {
 public:
  explicit CountingAllocator(Allocator& real) : real_(real) {}
  StatusOr<TensorView> allocate(DType dtype, const std::vector<int64_t>& shape, Device device) override {
    ++asked_;
    if (before_) before_();
    return real_.allocate(dtype, shape, device);
  }
  // While nobody receives.
  void doBefore(std::function<void()> action) { before_ = std::move(action); }
  int asked() const { return asked_; }

 private:
  Allocator& real_;
  std::function<void()> before_;
  std::atomic<int> asked_{0};
};

// A channel whose consumer has received number 0, 8 x 8 floats, and takes the next for one like it.
struct Acquainted {
  explicit Acquainted(const ContractBackend& backend) : rig(backend), allocator(rig.cache()) {
    REQUIRE(rig.publish(0, leaf(floats({8, 8}))).ok());
    REQUIRE(receive(0).get().ok());
  }
  std::future<StatusOr<ArtifactTree>> receive(uint64_t number) {
    WaitOptions wait = patient();
    return std::async(std::launch::async,
                      [this, number, wait] { return rig.consumer().receive(SequenceNumber(number), allocator, wait); });
  }
  // That a receive() is under way, which hears now that something comes.
  void announce() {
    REQUIRE(eventually([&] { return rig.consumer().stats().pending == 1; }));
    rig.producer().announce();
  }
  static void checkIs(const StatusOr<ArtifactTree>& got, const TensorView& sent) {
    REQUIRE(got.status().ToString() == "OK");
    CHECK(elementsOf<float>(*got->getIf<TensorView>()) == elementsOf<float>(sent));
  }

  Rig rig;
  CountingAllocator allocator;
};

void makesTargetsWhileItWaits(const ContractBackend& backend) {
  Acquainted it(backend);
  CHECK(it.allocator.asked() == 1);
  // One like the last: its target is there before it is.
  auto next = it.receive(1);
  it.announce();
  if (backend.backend->asynchronous()) CHECK(eventually([&] { return it.allocator.asked() == 2; }));
  REQUIRE(it.rig.publish(1, leaf(floats({8, 8}, 50))).ok());
  Acquainted::checkIs(next.get(), floats({8, 8}, 50));
  CHECK(it.allocator.asked() == 2);
  // Another one: what was made goes unused.
  next = it.receive(2);
  it.announce();
  REQUIRE(it.rig.publish(2, leaf(floats({3, 5}, 70))).ok());
  Acquainted::checkIs(next.get(), floats({3, 5}, 70));
  CHECK(it.rig.consumer().stats().bytes_read == (2 * 8 * 8 + 3 * 5) * 4);
}

void endsWhileTargetsAreMade(const ContractBackend& backend) {
  Acquainted it(backend);
  it.allocator.doBefore([&] { it.rig.consumer().close(); });
  auto next = it.receive(1);
  if (!backend.backend->asynchronous()) {  // nothing is made ahead
    REQUIRE(eventually([&] { return it.rig.consumer().stats().pending == 1; }));
    it.rig.consumer().close();
  }
  CHECK(next.get().status().code() == absl::StatusCode::kCancelled);
  CHECK(it.rig.consumer().join(soon()).ok());
}

void outlivesAnAllocatorThatThrows(const ContractBackend& backend) {
  Acquainted it(backend);
  it.allocator.doBefore([] { throw std::runtime_error("no memory"); });
  // Ahead of its publication too, where nobody hears of it.
  auto next = it.receive(1);
  it.announce();
  REQUIRE(it.rig.publish(1, leaf(floats({8, 8}, 50))).ok());
  CHECK_THROWS_AS(next.get(), std::runtime_error);
  CHECK(eventually([&] { return it.rig.producer().stats().slots_in_use == 0; }));
  CHECK(it.rig.consumer().stats().pending == 0);
  it.allocator.doBefore(nullptr);
  REQUIRE(it.rig.publish(2, leaf(floats({8, 8}, 70))).ok());
  Acquainted::checkIs(it.receive(2).get(), floats({8, 8}, 70));
}

// Everything about an artifact but where it is.
std::string describe(const ArtifactTree& tree) {
  std::ostringstream text;
  const auto items = [&](const std::vector<ArtifactTree>& all) {
    for (const ArtifactTree& item : all)
      text << describe(item) << ",";
  };
  if (const auto* leaf = tree.getIf<TensorView>()) {
    text << static_cast<int>(leaf->dtype) << (leaf->whole ? " whole" : "") << (leaf->tokens ? " tokens" : "");
    for (const int64_t extent : leaf->shape)
      text << " " << extent;
    for (const uint8_t byte : elementsOf<uint8_t>(*leaf))
      text << ":" << int{byte};
  } else if (const auto* entries = tree.getIf<ArtifactTree::Dict>()) {
    for (const auto& [key, entry] : entries->entries)
      text << key << "=" << describe(entry) << ",";
  } else if (const auto* list = tree.getIf<ArtifactTree::List>()) {
    text << "list ";
    items(list->items);
  } else if (const auto* tuple = tree.getIf<ArtifactTree::Tuple>()) {
    text << "tuple ";
    items(tuple->items);
  } else if (const auto* real = tree.getIf<double>()) {
    text << "bits " << std::bit_cast<uint64_t>(*real);
  } else if (const auto* integer = tree.getIf<int64_t>()) {
    text << "integer " << *integer;
  } else if (const auto* flag = tree.getIf<bool>()) {
    text << "flag " << *flag;
  } else if (const auto* string = tree.getIf<std::string>()) {
    text << "text " << *string;
  } else {
    text << "null";
  }
  return text.str();
}

// One of few, so that many are like the one before, and others differ from it in one thing.
ArtifactTree drawArtifact(std::mt19937& random) {
  const auto tensor = [&](uint8_t first) {
    TensorView view = bytes({draw(random, 0, 9) == 0 ? 4 : 3}, first);
    view.whole = draw(random, 0, 9) == 0;
    return view;
  };
  const ArtifactTree scalars[] = {ArtifactTree::Value(0.0),
                                  ArtifactTree::Value(-0.0),
                                  ArtifactTree(),
                                  ArtifactTree::Value(int64_t{0}),
                                  ArtifactTree::Value(false),
                                  ArtifactTree::Value(std::nan("")),
                                  ArtifactTree::Value(std::string("0"))};
  const TensorView x = tensor(static_cast<uint8_t>(random()));
  const TensorView y = draw(random, 0, 9) == 0 ? x : tensor(static_cast<uint8_t>(random()));
  std::vector<ArtifactTree> pair{leaf(x), leaf(y)};
  if (draw(random, 0, 9) == 0) std::swap(pair[0], pair[1]);
  if (draw(random, 0, 9) == 0) pair.pop_back();
  ArtifactTree items = draw(random, 0, 9) == 0 ? ArtifactTree(ArtifactTree::Value(ArtifactTree::Tuple{std::move(pair)}))
                                               : ArtifactTree(ArtifactTree::Value(ArtifactTree::List{std::move(pair)}));
  const ArtifactTree scalar = draw(random, 0, 3) == 0 ? scalars[random() % std::size(scalars)] : scalars[0];
  return dict({{draw(random, 0, 9) == 0 ? "other" : "scalar", scalar}, {"items", std::move(items)}});
}

void carriesWhatDiffersFromTheLast(const ContractBackend& backend) {
  Rig rig(backend);
  const uint32_t seed = testSeed();
  CAPTURE(seed);
  std::mt19937 random(seed);
  for (uint64_t n = 0; n < 300; ++n) {
    CAPTURE(n);
    const ArtifactTree sent = drawArtifact(random);
    if (draw(random, 0, 19) == 0) {
      REQUIRE(rig.producer().abort(SequenceNumber(n), absl::InternalError("stage broke")).ok());
      CHECK(rig.receive(n).status().code() == absl::StatusCode::kInternal);
      continue;
    }
    REQUIRE(rig.publish(n, sent).ok());
    const auto got = rig.receive(n);
    REQUIRE(got.status().ToString() == "OK");
    REQUIRE(describe(*got) == describe(sent));
  }
}

void staysOrderedUnderLoad(const ContractBackend& backend) {
  Rig rig(backend);
  constexpr uint64_t kCount = 500;
  std::thread publisher([&] {
    for (uint64_t n = 0; n < kCount; ++n) {
      // Three shapes, so that several pools take turns.
      const auto width = static_cast<int64_t>(64 + n % 3);
      if (!rig.publish(n, leaf(floats({width, 16}, static_cast<float>(n)))).ok()) return;
    }
  });
  uint64_t right = 0;
  for (uint64_t n = 0; n < kCount; ++n) {
    const auto got = rig.receive(n);
    if (!got.ok()) break;
    const auto width = static_cast<int64_t>(64 + n % 3);
    right +=
        elementsOf<float>(*got->getIf<TensorView>()) == elementsOf<float>(floats({width, 16}, static_cast<float>(n)));
  }
  publisher.join();
  CHECK(right == kCount);
  CHECK(eventually([&] { return rig.producerHeard().transfers().size() == kCount; }));
  const auto transfers = rig.producerHeard().transfers();
  for (uint64_t n = 0; n < kCount; ++n)
    CHECK(transfers[n].sequence.value == n);
  CHECK(rig.producer().stats().pools == 3);
  CHECK(rig.consumer().stats().announced == (backend.backend->asynchronous() ? kCount : 0));
}

}  // namespace

std::vector<ContractCase> transferContract() {
  return {
      {"dictionaries, lists, tuples and scalars keep their structure", keepsStructure},
      {"a tensor that appears twice is sent once", sendsDuplicatesOnce},
      {"an observer is told where the time of a hand-off went", tellsWhereItsTimeWent},
      {"empty tensors, scalars and artifacts without storage arrive [C4]", carriesEmptyThings},
      {"sources may have any strides", gathersStridedSources},
      {"targets may have any strides", fillsStridedTargets},
      {"a borrowed artifact is read in its slots and acknowledged after use", readsInPlace, true},
      {"a taken artifact is the taker's own, and acknowledged on release [C3]", acknowledgesWhatWasTakenOnRelease},
      {"an announcement is a hint, sent once for each number [C10]", announcesOncePerNumber},
      {"a consumer that waits makes the targets of what is coming", makesTargetsWhileItWaits},
      {"a channel may end while targets are made", endsWhileTargetsAreMade},
      {"an allocator that throws ends its number alone", outlivesAnAllocatorThatThrows},
      {"what differs from the last artifact arrives as it is [C20]", carriesWhatDiffersFromTheLast},
      {"numbers arrive in order, each with its own content [C1][C2]", staysOrderedUnderLoad},
  };
}

}  // namespace latentd::channel::testing
