#include <sys/resource.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>

#include "channel/limits.h"
#include "channel/shm_backend.h"
#include "runtime/base/unix_socket.h"
#include "tests/channel/channel_rig.h"
#include "tests/channel/reshard_case.h"
#include "tests/channel/tensors.h"
#include "tests/support/catch.h"
#include "tests/support/peer_group.h"

// What only real shared memory and real processes show.
namespace latentd::channel::testing {
namespace {

using absl::StatusCode;
using latentd::testing::ParentPipe;
using latentd::testing::PeerGroup;

ContractBackend shm() {
  return {"shm", makeShmBackend(),
          [](const TempDir& dir, uint32_t rank) { return dir.file("p" + std::to_string(rank) + ".sock"); }};
}

size_t residentKiB() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("VmRSS:", 0) == 0) return std::stoul(line.substr(6));
  }
  return 0;
}

// Sets a limit for its life.
class Limit {
 public:
  Limit(__rlimit_resource resource, rlim_t value) : resource_(resource) {
    ::getrlimit(resource, &before_);
    const rlimit lower{value, before_.rlim_max};
    REQUIRE(::setrlimit(resource, &lower) == 0);
  }
  ~Limit() { ::setrlimit(resource_, &before_); }

 private:
  __rlimit_resource resource_;
  rlimit before_{};
};

}  // namespace

TEST_CASE("channel: 10,000 hand-offs with flat descriptors and memory [C16]", "[channel][shm]") {
  Rig rig(shm());
  size_t descriptors = 0;
  size_t resident = 0;
  for (uint64_t n = 0; n < 10'000; ++n) {
    REQUIRE(rig.publish(n, dict({{"x", leaf(floats({1000}, static_cast<float>(n)))}, {"n", leaf(longs({3}))}})).ok());
    const auto got = rig.receive(n);
    REQUIRE(got.ok());
    REQUIRE(static_cast<const float*>(tensorAt(*got, "x").data)[1] == static_cast<float>(n) + 1);
    if (n == 1000) {
      descriptors = openDescriptors();
      resident = residentKiB();
    }
  }
  CHECK(openDescriptors() == descriptors);
#if !defined(LATENTD_ASAN) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  CHECK(residentKiB() < resident + 1024);
#else
  CHECK(resident > 0);
#endif
  CHECK(rig.producer().stats().pools == 2);
}

TEST_CASE("channel: memory that cannot be allocated is RESOURCE_EXHAUSTED and passes", "[channel][shm]") {
  Rig rig(shm());
  // A file may not grow beyond 1 MiB: no pool can be made.
  const auto before = std::signal(SIGXFSZ, SIG_IGN);
  {
    const Limit limit(RLIMIT_FSIZE, 1 << 20);
    const Status refused = rig.publish(0, leaf(floats({64})));
    CHECK(refused.code() == StatusCode::kResourceExhausted);
    CHECK(messageOf(refused).find("float32[64]") != std::string::npos);
    REQUIRE(rig.producer().abort(SequenceNumber(0), refused).ok());
    CHECK(rig.receive(0).status().code() == StatusCode::kResourceExhausted);
  }
  std::signal(SIGXFSZ, before);
  REQUIRE(rig.publish(1, leaf(floats({64}, 1))).ok());
  CHECK(rig.receive(1).ok());
}

TEST_CASE("channel: want of descriptors ends artifacts, not the channel", "[channel][shm]") {
  Rig rig(shm());
  uint64_t number = 0;
  // Both sides live here, so the limit hits whoever asks first: sweep it until all is well again.
  for (size_t free = 0; free < 6; ++free) {
    CAPTURE(free);
    const auto width = static_cast<int64_t>(100 + free);
    {
      const Limit limit(RLIMIT_NOFILE, openDescriptors() - 1 + free);
      const Status published = rig.publish(number, leaf(floats({width})));
      if (!published.ok()) {
        CHECK(published.code() == StatusCode::kResourceExhausted);
        REQUIRE(rig.producer().abort(SequenceNumber(number), published).ok());
      }
      const auto got = rig.receive(number++);
      if (!got.ok()) CHECK(got.status().code() == StatusCode::kResourceExhausted);
    }
    // The next but one has what it needs: a lost pool is announced again.
    for (int i = 0; i < 2; ++i) {
      REQUIRE(rig.publish(number, leaf(floats({width}))).ToString() == "OK");
      rig.receive(number++).status().IgnoreError();
    }
    REQUIRE(rig.publish(number, leaf(floats({width}, 9))).ok());
    CHECK(rig.receive(number++).status().ToString() == "OK");
  }
  CHECK(rig.producerHeard().failures().empty());
}

TEST_CASE("channel: strangers on the socket are dropped [C8]", "[channel][shm]") {
  Rig rig(shm());
  const std::string address = rig.addresses()[0];
  std::vector<UnixSocket> strangers;
  for (const std::string& text : {std::string(1, '\0'), std::string(5000, 'x'), std::string("\x12\x00", 2)}) {
    auto socket = UnixSocket::connect(address);
    REQUIRE(socket.ok());
    CHECK(socket->send(text).ok());
    strangers.push_back(*std::move(socket));
  }
  CHECK(eventually([&] { return rig.producer().stats().handshakes_refused == 3; }));
  for (uint32_t i = 0; i < 4 * kStrayConnectionsMax; ++i) {
    // The listener's own queue may be full for a moment.
    REQUIRE(eventually([&] {
      auto socket = UnixSocket::connect(address);
      if (socket.ok()) strangers.push_back(*std::move(socket));
      return socket.ok();
    }));
  }
  // Those beyond the bound go at once, the silent ones with their deadline.
  CHECK(eventually([&] {
    return rig.producer().stats().handshakes_refused >= 3 + 4 * kStrayConnectionsMax - (1 + kStrayConnectionsMax);
  }));
  REQUIRE(rig.publish(0, leaf(floats({64}))).ok());
  CHECK(rig.receive(0).ok());
}

// ---- resharding between real processes -----------------------------------------------------------------------

namespace {

constexpr uint64_t kRounds = 4;

struct RankSetup {
  uint32_t seed = 0;
  uint32_t rank = 0;
  std::string folder;

  std::vector<std::string> addresses(uint32_t ranks) const {
    std::vector<std::string> all;
    for (uint32_t p = 0; p < ranks; ++p)
      all.push_back(folder + "/p" + std::to_string(p));
    return all;
  }
};

RankSetup parse(const std::string& text) {
  RankSetup setup;
  std::istringstream(text) >> setup.seed >> setup.rank >> setup.folder;
  return setup;
}

// Even seeds draw boxes, odd ones token grids.
ReshardCase caseOf(uint32_t seed) {
  std::mt19937 random(seed);
  return seed % 2 == 0 ? ReshardCase::make(random) : ReshardCase::makeTokens(random);
}

}  // namespace

TEST_CASE("channel reshard producer child", "[.][child]") {
  ParentPipe pipe;
  const RankSetup setup = parse(pipe.next());
  const ReshardCase reshard = caseOf(setup.seed);
  SteadyClock clock;
  LoopThread loop(clock, "child-loop");
  const ChannelContext context{makeShmBackend(), &loop.loop(), &clock, nullptr};
  auto producer = openProducer(reshard.spec(smallSpec()), Rank(setup.rank),
                               setup.addresses(reshard.producers)[setup.rank], context);
  REQUIRE(producer.ok());
  pipe.send("open");
  pipe.next();
  for (uint64_t n = 0; n < kRounds; ++n) {
    REQUIRE((*producer)->publish(SequenceNumber(n), reshard.published(setup.rank, n)).ok());
  }
  pipe.send("published");
  pipe.next();  // the consumers are done
  (*producer)->close();
  pipe.send((*producer)->join(soon()).ToString());
}

TEST_CASE("channel reshard consumer child", "[.][child]") {
  ParentPipe pipe;
  const RankSetup setup = parse(pipe.next());
  const ReshardCase reshard = caseOf(setup.seed);
  SteadyClock clock;
  LoopThread loop(clock, "child-loop");
  const ChannelContext context{makeShmBackend(), &loop.loop(), &clock, nullptr};
  auto consumer =
      openConsumer(reshard.spec(smallSpec()), Rank(setup.rank), setup.addresses(reshard.producers), Device{}, context);
  REQUIRE(consumer.ok());
  pipe.send("open");
  pipe.next();
  BufferCache cache(1 << 20);
  bool right = true;
  for (uint64_t n = 0; n < kRounds; ++n) {
    const auto got = (*consumer)->receive(SequenceNumber(n), cache);
    right = right && got.ok() && reshard.check(*got, setup.rank, n);
  }
  right = right && (*consumer)->stats().bytes_read == kRounds * reshard.bytesOf(setup.rank);
  pipe.send(right ? "right" : "wrong");
  pipe.next();  // the others are done: the end of one rank is the end of the channel
  (*consumer)->close();
  pipe.send((*consumer)->join(soon()).ToString());
}

TEST_CASE("channel: P ranks to C ranks between processes, each reads its overlap [C7][C18]", "[channel][shm]") {
  std::mt19937 random(testSeed());
  for (uint32_t round = 0; round < 8; ++round) {
    const uint32_t seed = static_cast<uint32_t>(random()) / 2 * 2 + round % 2;
    const ReshardCase reshard = caseOf(seed);
    CAPTURE(seed, reshard.describe());
    const TempDir dir;
    PeerGroup group;
    const auto setup = [&](uint32_t rank) {
      return std::to_string(seed) + " " + std::to_string(rank) + " " + dir.file("");
    };
    std::vector<size_t> producers, consumers;
    for (uint32_t p = 0; p < reshard.producers; ++p) {
      producers.push_back(group.start("channel reshard producer child", setup(p)));
    }
    for (const size_t child : producers)
      REQUIRE(group.next(child) == "open");
    for (uint32_t c = 0; c < reshard.consumers; ++c) {
      consumers.push_back(group.start("channel reshard consumer child", setup(c)));
    }
    for (const size_t child : consumers)
      REQUIRE(group.next(child) == "open");
    for (const size_t child : producers)
      group.send(child, "go");
    for (const size_t child : consumers)
      group.send(child, "go");
    for (const size_t child : consumers)
      CHECK(group.next(child) == "right");
    for (const size_t child : consumers)
      group.send(child, "done");
    for (const size_t child : consumers)
      CHECK(group.next(child) == "OK");
    for (const size_t child : producers) {
      // Those that publish learn that the consumers retired; the others had nothing to do.
      CHECK(group.next(child) == "published");
      group.send(child, "done");
      CHECK(group.next(child) == "OK");
      CHECK(group.wait(child) == 0);
    }
    for (const size_t child : consumers)
      CHECK(group.wait(child) == 0);
  }
}

}  // namespace latentd::channel::testing
