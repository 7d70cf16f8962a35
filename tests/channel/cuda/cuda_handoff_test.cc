#include <functional>
#include <future>
#include <sstream>
#include <string_view>
#include <thread>

#include "tests/channel/cuda/device_end.h"
#include "tests/channel/cuda/sync_counter.h"
#include "tests/channel/tensors.h"
#include "tests/support/catch.h"
#include "tests/support/peer_group.h"
#include "tests/support/stream_blocker.h"

// Hand-offs of tensors in device memory between real processes: order, reuse, and what they cost. Consumers are hidden
// cases of this binary.
namespace latentd::channel::testing {
namespace {

using latentd::testing::ParentPipe;
using latentd::testing::PeerGroup;
using latentd::testing::StreamBlocker;

constexpr int64_t kBytes = 4 << 20;

TensorView byteTensor(const DeviceEnd& end, int64_t bytes = kBytes) {
  return deviceTensor(DType::kUInt8, {bytes}, end.device);
}

// For no shard_dim, in what a child is told.
constexpr int32_t kWhole = 99;

// Of bytes; the same for both sides of a hand-off, which are one program.
size_t hashOf(const std::vector<std::byte>& bytes) {
  return std::hash<std::string_view>()({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

uint64_t freeDeviceBytes() { return cuda::deviceMemory(cuda::DeviceIndex(0))->free_bytes; }

// A producer in this process and consumers in others, which do what they are told.
class Handoff {
 public:
  // beside: the first consumers, which are on the producer's device.
  explicit Handoff(uint32_t consumers = 1, ChannelSpec spec = smallSpec(), uint32_t beside = 0)
      : spec_(std::move(spec)) {
    spec_.consumer_ranks = consumers;
    address_ = dir_.file("p.sock");
    auto producer = openProducer(spec_, Rank(0), address_, end_.context);
    REQUIRE(producer.status().ToString() == "OK");
    producer_ = *std::move(producer);
    for (uint32_t c = 0; c < consumers; ++c) {
      std::ostringstream setup;
      setup << address_ << ' ' << c << ' ' << consumers << ' ' << spec_.slots << ' ' << spec_.profiles_max << ' '
            << spec_.consumer_shard_dim.value_or(kWhole) << ' '
            << (c < beside ? kProducerDevice : consumerDevice()).value;
      group_.start("channel cuda consumer child", setup.str());
    }
    REQUIRE(eventually([&] { return producer_->bound(); }));
  }
  ~Handoff() {
    for (uint32_t c = 0; c < spec_.consumer_ranks; ++c)
      CHECK(ask(c, "close") == "OK");
    producer_->close();
    CHECK(producer_->join(soon()).ToString() == "OK");
    for (uint32_t c = 0; c < spec_.consumer_ranks; ++c)
      CHECK(group_.wait(c) == 0);
  }

  DeviceEnd& end() { return end_; }
  Producer& producer() { return *producer_; }
  cuda::StreamView stream() const { return end_.stream.view(); }

  Status publish(uint64_t number, const TensorView& tensor) {
    fillBytes(tensor, patternOf(number), stream());
    return producer_->publish(SequenceNumber(number), leaf(tensor), patient());
  }
  // Where there is one profile: the first leaf is filled before the second one turns out to have no place.
  void failToPublish(uint64_t number, const TensorView& tensor) {
    const ArtifactTree pair = dict({{"x", leaf(tensor)}, {"y", leaf(byteTensor(end_))}});
    const Status failed = producer_->publish(SequenceNumber(number), pair, patient());
    REQUIRE(failed.code() == absl::StatusCode::kResourceExhausted);
  }
  void tell(uint32_t consumer, const std::string& order) { group_.send(consumer, order); }
  std::string hear(uint32_t consumer) { return group_.next(consumer).value_or("(died)"); }
  std::string ask(uint32_t consumer, const std::string& order) {
    tell(consumer, order);
    return hear(consumer);
  }

 private:
  ChannelSpec spec_;
  const TempDir dir_;
  std::string address_;
  DeviceEnd end_;
  std::unique_ptr<Producer> producer_;
  PeerGroup group_;
};

// Carries out orders: "receive N" (asynchronous), "check N" (the last tensor, after the device is done), "discard N",
// "hash" (of the last tensor), "block", "unblock", "slow MS" (blocked that long), "stream FROM COUNT" (receives and
// checks), "synchronised", "reads" (ahead, and once more), "close".
class ConsumerOrders {
 public:
  ConsumerOrders(Consumer& consumer, DeviceEnd& end) : consumer_(consumer), end_(end) {}

  std::string carryOut(const std::string& order) {
    std::istringstream in(order);
    std::string verb;
    uint64_t number = 0, count = 0;
    in >> verb >> number >> count;
    if (verb == "receive") return receive(number).ToString();
    if (verb == "borrow") return borrow(number);
    if (verb == "check") return allBytes(last_, patternOf(number), end_.stream.view()) ? "OK" : "another content";
    if (verb == "discard") return consumer_.discard(SequenceNumber(number), "test").ToString();
    if (verb == "block") blocker_ = std::make_unique<StreamBlocker>(end_.stream.view());
    if (verb == "unblock") blocker_.reset();
    if (verb == "slow") slow(std::chrono::milliseconds(number));
    if (verb == "stream") return stream(number, count);
    if (verb == "synchronised") return std::to_string(synchroniseCalls());
    if (verb == "hash") return std::to_string(hashOf(download(last_, end_.stream.view())));
    if (verb == "reads") return std::to_string(consumer_.stats().read_ahead + consumer_.stats().reread);
    return "OK";
  }

 private:
  Status receive(uint64_t number) {
    LATENTD_ASSIGN_OR_RETURN(const ArtifactTree tree, consumer_.receive(SequenceNumber(number), end_.cache, patient()));
    last_ = *tree.getIf<TensorView>();
    return absl::OkStatus();
  }
  // The stream stands still for a while, whatever this process waits for.
  void slow(std::chrono::milliseconds time) {
    blocker_ = std::make_unique<StreamBlocker>(end_.stream.view());
    releasing_ = std::async(std::launch::async, [this, time] {
      std::this_thread::sleep_for(time);
      blocker_->release();
    });
  }
  std::string borrow(uint64_t number) {
    auto lent = consumer_.borrow(SequenceNumber(number), patient());
    if (!lent.ok()) return lent.status().ToString();
    const bool same = allBytes(*lent->tree().getIf<TensorView>(), patternOf(number), end_.stream.view());
    lent->release();
    return same ? "OK" : "another content";
  }
  // Checks every hundredth: the download is a host synchronisation, which steady hand-offs have none of.
  std::string stream(uint64_t from, uint64_t count) {
    for (uint64_t n = from; n < from + count; ++n) {
      const Status received = receive(n);
      if (!received.ok()) return received.ToString();
      if (n % 100 == 99 && !allBytes(last_, patternOf(n), end_.stream.view())) return "another content";
    }
    std::ostringstream text;
    text << openDescriptors();
    return text.str();
  }

  Consumer& consumer_;
  DeviceEnd& end_;
  TensorView last_;
  std::unique_ptr<StreamBlocker> blocker_;
  std::future<void> releasing_;
};

}  // namespace

TEST_CASE("channel cuda consumer child", "[.][child]") {
  ParentPipe pipe;
  std::istringstream setup(pipe.next());
  std::string address;
  uint32_t rank = 0;
  ChannelSpec spec = smallSpec();
  int32_t shard_dim = 0;
  int device = 0;
  setup >> address >> rank >> spec.consumer_ranks >> spec.slots >> spec.profiles_max >> shard_dim >> device;
  if (shard_dim != kWhole) spec.consumer_shard_dim = shard_dim;
  DeviceEnd end(cuda::DeviceIndex{device});
  auto consumer = openConsumer(spec, Rank(rank), {address}, end.channelDevice(), end.context);
  REQUIRE(consumer.status().ToString() == "OK");
  {
    ConsumerOrders orders(**consumer, end);
    for (std::string order = pipe.next(); order != "close"; order = pipe.next())
      pipe.send(orders.carryOut(order));
  }
  (*consumer)->close();
  pipe.send("OK");
  CHECK((*consumer)->join(soon()).ToString() == "OK");
}

TEST_CASE("channel: a consumer's copy waits for a slow producer, and nobody's host does", "[channel][cuda]") {
  Handoff handoff;
  const TensorView tensor = byteTensor(handoff.end());
  // Both slots hold something else: reading too early would show it.
  for (uint64_t n = 0; n < 2; ++n) {
    REQUIRE(handoff.publish(n, tensor).ok());
    REQUIRE(handoff.ask(0, "receive " + std::to_string(n)) == "OK");
    REQUIRE(handoff.ask(0, "check " + std::to_string(n)) == "OK");
  }
  StreamBlocker slow(handoff.stream());
  REQUIRE(handoff.publish(2, tensor).ToString() == "OK");
  // The producer's device has not begun, and the consumer has received.
  REQUIRE(handoff.ask(0, "receive 2") == "OK");
  CHECK(cudaStreamQuery(handoff.stream().get()) == cudaErrorNotReady);
  slow.release();
  CHECK(handoff.ask(0, "check 2") == "OK");
}

TEST_CASE("channel: a slot is filled again only after a slow consumer's copy [C3]", "[channel][cuda]") {
  ChannelSpec spec = smallSpec();
  spec.slots = 1;
  Handoff handoff(1, spec);
  const TensorView tensor = byteTensor(handoff.end());
  REQUIRE(handoff.ask(0, "block") == "OK");
  REQUIRE(handoff.publish(0, tensor).ok());
  REQUIRE(handoff.ask(0, "receive 0") == "OK");
  // Acknowledged, because the completion is recorded; the fill is submitted, and must wait on the device.
  REQUIRE(handoff.publish(1, tensor).ToString() == "OK");
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // time to go wrong in, nothing waits for it
  CHECK(cudaStreamQuery(handoff.stream().get()) == cudaErrorNotReady);
  REQUIRE(handoff.ask(0, "unblock") == "OK");
  CHECK(handoff.ask(0, "check 0") == "OK");
  REQUIRE(handoff.ask(0, "receive 1") == "OK");
  CHECK(handoff.ask(0, "check 1") == "OK");
}

TEST_CASE("channel: nobody waits for the event of a discarded number [C17]", "[channel][cuda]") {
  ChannelSpec spec = smallSpec();
  spec.slots = 1;
  Handoff handoff(1, spec);
  const TensorView tensor = byteTensor(handoff.end());
  REQUIRE(handoff.ask(0, "block") == "OK");
  for (uint64_t n = 0; n < 5; ++n) {
    REQUIRE(handoff.publish(n, tensor).ToString() == "OK");
    REQUIRE(handoff.ask(0, "discard " + std::to_string(n)) == "OK");
  }
  // The consumer's stream stands still; this one does not wait for it.
  CHECK(cudaStreamSynchronize(handoff.stream().get()) == cudaSuccess);
  CHECK(handoff.producer().stats().discarded_acks >= 4);
  REQUIRE(handoff.ask(0, "unblock") == "OK");
  REQUIRE(handoff.publish(5, tensor).ok());
  REQUIRE(handoff.ask(0, "receive 5") == "OK");
  CHECK(handoff.ask(0, "check 5") == "OK");
}

TEST_CASE("channel: what is read ahead on a device and was not published is not what is received [C21]",
          "[channel][cuda]") {
  ChannelSpec spec = smallSpec();
  spec.slots = GENERATE(1u, 2u);
  spec.profiles_max = 1;
  spec.unpooled_bytes_max = 1 << 20;
  CAPTURE(spec.slots);
  Handoff handoff(1, spec);
  const TensorView tensor = byteTensor(handoff.end());
  const TensorView wrong = byteTensor(handoff.end());
  fillBytes(wrong, 0, handoff.stream());
  REQUIRE(handoff.publish(0, tensor).ok());
  REQUIRE(handoff.ask(0, "receive 0") == "OK");
  // A consumer that wakes up late reads what is published, and once.
  int in_vain = 0;
  for (uint64_t n = 1; n <= 20 && in_vain == 0; ++n) {
    const int before = std::stoi(handoff.ask(0, "reads"));
    handoff.tell(0, "receive " + std::to_string(n));
    handoff.failToPublish(n, wrong);
    // Time to go wrong in, nothing waits for it; more on a machine that is busy.
    std::this_thread::sleep_for(std::chrono::milliseconds(10 * n));
    REQUIRE(handoff.publish(n, tensor).ToString() == "OK");
    REQUIRE(handoff.hear(0) == "OK");
    CHECK(handoff.ask(0, "check " + std::to_string(n)) == "OK");
    in_vain = std::stoi(handoff.ask(0, "reads")) - before - 1;
  }
  CHECK(in_vain > 0);
}

TEST_CASE("channel: what is filled in parts arrives as a whole, whichever part of it a rank reads [C7][C22]",
          "[channel][cuda]") {
  // The last part is shorter than the others, and no share of a consumer ends where a part does.
  constexpr int64_t kRows = 5, kRowBytes = 8 << 20;
  ChannelSpec spec = smallSpec();
  const auto dim = GENERATE(as<int32_t>{}, kWhole, 0, 1);
  CAPTURE(dim);
  if (dim != kWhole) spec.consumer_shard_dim = dim;
  const uint32_t consumers = dim == kWhole ? 1 : 2;
  Handoff handoff(consumers, spec);
  const TensorView tensor = deviceTensor(DType::kUInt8, {kRows, kRowBytes}, handoff.end().device);
  std::vector<std::byte> content(kRows * kRowBytes);
  for (uint64_t n = 0; n < 4; ++n) {
    for (size_t i = 0; i < content.size(); ++i)
      content[i] = static_cast<std::byte>((i + n) * 0x9e3779b97f4a7c15u >> 56);
    upload(tensor, content.data(), handoff.stream());
    REQUIRE(handoff.producer().publish(SequenceNumber(n), leaf(tensor), patient()).ToString() == "OK");
    for (uint32_t c = 0; c < consumers; ++c) {
      REQUIRE(handoff.ask(c, "receive " + std::to_string(n)) == "OK");
      // The longer share is the first rank's.
      const int64_t first_row = dim == 0 && c == 1 ? 3 : 0, end_row = dim == 0 && c == 0 ? 3 : kRows;
      const int64_t first_byte = dim == 1 && c == 1 ? kRowBytes / 2 : 0;
      const int64_t row_bytes = dim == 1 ? kRowBytes / 2 : kRowBytes;
      std::vector<std::byte> part;
      for (int64_t row = first_row; row < end_row; ++row) {
        const auto begin = content.begin() + row * kRowBytes + first_byte;
        part.insert(part.end(), begin, begin + row_bytes);
      }
      CHECK(handoff.ask(c, "hash") == std::to_string(hashOf(part)));
    }
  }
}

TEST_CASE("channel: no part of a large tensor is read before it is filled [C22]", "[channel][cuda]") {
  Handoff handoff;
  const TensorView tensor = byteTensor(handoff.end(), 40 << 20);
  for (uint64_t n = 0; n < 12; ++n) {
    handoff.tell(0, "receive " + std::to_string(n));
    REQUIRE(handoff.publish(n, tensor).ToString() == "OK");
    REQUIRE(handoff.hear(0) == "OK");
    CHECK(handoff.ask(0, "check " + std::to_string(n)) == "OK");
  }
}

TEST_CASE("channel: nothing of a large slot is read before all that it needs is filled, however it is [C22]",
          "[channel][cuda]") {
  constexpr int64_t kRows = 40, kRowBytes = 1 << 20;
  const auto pad = GENERATE(as<int64_t>{}, 0, 256);  // between the rows of the source
  const auto verb = GENERATE(as<std::string>{}, "receive ", "borrow ");
  // One that reads in parts, alone and with one that does not.
  const auto beside = GENERATE(as<uint32_t>{}, 0, 1);
  CAPTURE(pad, verb, beside);
  Handoff handoff(1 + beside, smallSpec(), beside);
  const TensorView wide = deviceTensor(DType::kUInt8, {kRows, kRowBytes + pad}, handoff.end().device);
  TensorView tensor = wide;
  tensor.shape[1] = kRowBytes;
  for (uint64_t n = 0; n < 5; ++n) {
    StreamBlocker slow(handoff.stream());
    fillBytes(wide, patternOf(n), handoff.stream());
    REQUIRE(handoff.producer().publish(SequenceNumber(n), leaf(tensor), patient()).ToString() == "OK");
    for (uint32_t c = 0; c <= beside; ++c)
      handoff.tell(c, verb + std::to_string(n));
    std::this_thread::sleep_for(std::chrono::milliseconds(50));  // time to go wrong in, nothing waits for it
    slow.release();
    for (uint32_t c = 0; c <= beside; ++c) {
      REQUIRE(handoff.hear(c) == "OK");
      if (verb == "receive ") CHECK(handoff.ask(c, "check " + std::to_string(n)) == "OK");
    }
  }
}

TEST_CASE("channel: rows that lie gigabytes apart are staged", "[channel][cuda]") {
  Handoff handoff;
  constexpr int64_t kStride = (int64_t{1} << 31) + 4096;  // more than a pitch may be
  TensorView tensor = deviceTensor(DType::kUInt8, {kStride + 64}, handoff.end().device);
  fillBytes(tensor, patternOf(0), handoff.stream());
  tensor.shape = {2, 64};
  tensor.strides = {kStride, 1};
  REQUIRE(handoff.producer().publish(SequenceNumber(0), leaf(tensor), patient()).ToString() == "OK");
  REQUIRE(handoff.ask(0, "receive 0") == "OK");
  CHECK(handoff.ask(0, "check 0") == "OK");
}

TEST_CASE("channel: a one-shot buffer is not freed before a slow consumer's copy [C13]", "[channel][cuda]") {
  ChannelSpec spec = smallSpec();
  spec.profiles_max = 1;
  spec.unpooled_bytes_max = 64 << 20;
  Handoff handoff(1, spec);
  REQUIRE(handoff.publish(0, byteTensor(handoff.end())).ok());
  REQUIRE(handoff.ask(0, "receive 0") == "OK");
  REQUIRE(handoff.publish(1, byteTensor(handoff.end(), kBytes + 1)).ok());
  REQUIRE(handoff.ask(0, "slow 200") == "OK");
  REQUIRE(handoff.ask(0, "receive 1") == "OK");
  CHECK(handoff.ask(0, "check 1") == "OK");
}

TEST_CASE("channel: freeing a buffer of a device that works holds up nobody", "[channel][cuda]") {
  ChannelSpec spec = smallSpec();
  spec.profiles_max = 1;
  Handoff handoff(1, spec);
  REQUIRE(handoff.publish(0, byteTensor(handoff.end())).ok());
  REQUIRE(handoff.ask(0, "receive 0") == "OK");
  const TensorView other = byteTensor(handoff.end(), 1 << 10);
  StreamBlocker busy(handoff.stream());
  REQUIRE(handoff.publish(1, other).ToString() == "OK");
  REQUIRE(handoff.ask(0, "discard 1") == "OK");
  REQUIRE(eventually([&] { return handoff.producer().stats().transfers_done == 2; }));
  // The loop goes on.
  std::promise<void> ran;
  handoff.end().loop.loop().post([&] { ran.set_value(); });
  CHECK(ran.get_future().wait_for(std::chrono::seconds(3)) == std::future_status::ready);
  CHECK(cudaStreamQuery(handoff.stream().get()) == cudaErrorNotReady);
  // What is not freed is in use.
  CHECK(handoff.producer().stats().unpooled_bytes > 0);
  busy.release();
  CHECK(eventually([&] { return handoff.producer().stats().unpooled_bytes == 0; }));
}

TEST_CASE("channel: a pool is unmapped only after a slow consumer's copy [C13]", "[channel][cuda]") {
  Handoff handoff;
  REQUIRE(handoff.ask(0, "slow 200") == "OK");
  REQUIRE(handoff.publish(0, byteTensor(handoff.end())).ok());
  CHECK(handoff.ask(0, "receive 0") == "OK");  // and it closes, and ends well
}

TEST_CASE("channel: a pool is unmapped only after what was read ahead in vain [C13]", "[channel][cuda]") {
  ChannelSpec spec = smallSpec();
  spec.profiles_max = 1;
  spec.unpooled_bytes_max = 1 << 20;
  Handoff handoff(1, spec);
  const TensorView tensor = byteTensor(handoff.end());
  REQUIRE(handoff.publish(0, tensor).ok());
  REQUIRE(handoff.ask(0, "receive 0") == "OK");
  REQUIRE(handoff.ask(0, "slow 300") == "OK");
  handoff.tell(0, "receive 1");
  handoff.producer().announce();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // time to look in, nothing waits for it
  handoff.failToPublish(1, tensor);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  REQUIRE(handoff.producer().abort(SequenceNumber(1), absl::AbortedError("test")).ok());
  CHECK(handoff.hear(0) != "OK");  // and it closes, and ends well
}

TEST_CASE("channel: device slots are read in place", "[channel][cuda]") {
  Handoff handoff;
  const TensorView tensor = byteTensor(handoff.end());
  for (uint64_t n = 0; n < 6; ++n) {
    REQUIRE(handoff.publish(n, tensor).ok());
    CHECK(handoff.ask(0, "borrow " + std::to_string(n)) == "OK");
  }
}

TEST_CASE("channel: tensors beyond the profiles cross in one-shot device buffers", "[channel][cuda]") {
  ChannelSpec spec = smallSpec();
  spec.profiles_max = 1;
  spec.unpooled_bytes_max = 64 << 20;
  Handoff handoff(2, spec);
  REQUIRE(handoff.publish(0, byteTensor(handoff.end())).ok());
  for (const uint32_t c : {0u, 1u})
    REQUIRE(handoff.ask(c, "receive 0") == "OK");
  for (uint64_t n = 1; n < 20; ++n) {
    REQUIRE(handoff.publish(n, byteTensor(handoff.end(), kBytes + static_cast<int64_t>(n))).ToString() == "OK");
    CHECK(handoff.ask(0, "receive " + std::to_string(n)) == "OK");
    CHECK(handoff.ask(0, "check " + std::to_string(n)) == "OK");
    // One of two reads it, the other gives it up.
    CHECK(handoff.ask(1, "discard " + std::to_string(n)) == "OK");
  }
  CHECK(eventually([&] { return handoff.producer().stats().unpooled_bytes == 0; }));
  CHECK(handoff.producer().stats().unpooled_artifacts == 19);
}

TEST_CASE("channel: many consumers copy from the same slots", "[channel][cuda]") {
  constexpr uint32_t kConsumers = 4;
  Handoff handoff(kConsumers);
  const TensorView tensor = byteTensor(handoff.end());
  for (uint32_t c = 0; c < kConsumers; ++c)
    handoff.tell(c, "stream 0 400");
  for (uint64_t n = 0; n < 400; ++n)
    REQUIRE(handoff.publish(n, tensor).ToString() == "OK");
  for (uint32_t c = 0; c < kConsumers; ++c) {
    const std::string said = handoff.hear(c);
    CAPTURE(said);
    CHECK(std::atoi(said.c_str()) > 0);
  }
}

namespace {

// Device memory, descriptors and, where the counter is loaded, synchronise calls stay as they are.
void staysFlat(uint64_t count) {
  Handoff handoff;
  const TensorView tensor = byteTensor(handoff.end(), 64 << 10);
  const auto handOver = [&](uint64_t from, uint64_t numbers) {
    handoff.tell(0, "stream " + std::to_string(from) + " " + std::to_string(numbers));
    for (uint64_t n = from; n < from + numbers; ++n)
      REQUIRE(handoff.publish(n, tensor).ToString() == "OK");
    return handoff.hear(0);
  };
  const std::string files_there = handOver(0, 1000);
  REQUIRE(std::atoi(files_there.c_str()) > 0);
  const size_t files_here = openDescriptors();
  const uint64_t free_bytes = freeDeviceBytes();
  CHECK(handOver(1000, count) == files_there);
  CHECK(openDescriptors() == files_here);
  CHECK(freeDeviceBytes() == free_bytes);
  CHECK(handoff.producer().stats().pools == 1);
}

}  // namespace

TEST_CASE("channel: 5,000 hand-offs leave device memory and descriptors as they were [C16]", "[channel][cuda]") {
  staysFlat(5'000);
}

TEST_CASE("channel: 100,000 hand-offs leave device memory and descriptors as they were [C16]", "[.][cuda_long]") {
  staysFlat(100'000);
}

// Run with LD_PRELOAD=libcount_synchronise.so; tests/channel/cuda/count_synchronise.cc.
TEST_CASE("channel: steady hand-offs never synchronise the host with the device [C17]", "[.][cuda_synchronise]") {
  REQUIRE(synchroniseCalls() >= 0);
  Handoff handoff;
  const TensorView tensor = byteTensor(handoff.end());
  for (uint64_t n = 0; n < 4; ++n) {
    REQUIRE(handoff.publish(n, tensor).ok());
    REQUIRE(handoff.ask(0, "receive " + std::to_string(n)) == "OK");
  }
  const int64_t here = synchroniseCalls();
  const std::string there = handoff.ask(0, "synchronised");
  for (uint64_t n = 4; n < 504; ++n) {
    REQUIRE(handoff.publish(n, tensor).ok());
    REQUIRE(handoff.ask(0, "receive " + std::to_string(n)) == "OK");
  }
  CHECK(synchroniseCalls() == here);
  CHECK(handoff.ask(0, "synchronised") == there);
  // The counter counts.
  CHECK(handoff.ask(0, "check 503") == "OK");
  CHECK(handoff.ask(0, "synchronised") != there);
}

}  // namespace latentd::channel::testing
