#include <signal.h>

#include <functional>
#include <sstream>
#include <string>

#include "channel/shm_backend.h"
#include "tests/channel/channel_rig.h"
#include "tests/channel/tensors.h"
#include "tests/support/catch.h"
#include "tests/support/peer_group.h"

// SIGSTOP of either side, over shared memory and real processes: a stopped peer is not dead, so its connection stands.
// The other side's calls end by their deadline or by the progress time-out, and by nothing else; after SIGCONT the
// channel goes on (a caller's deadline ends the call only) or retires on both sides (the time-out ends the channel).
namespace latentd::channel::testing {
namespace {

using latentd::testing::ParentPipe;
using latentd::testing::PeerGroup;
using std::chrono::milliseconds;

// How long a stopped peer is waited for: long beside what a handshake or a hand-off takes on a machine that is busy,
// short beside the test's patience.
constexpr milliseconds kShort{1500};
// Longer than a test that only counts on callers' deadlines.
constexpr milliseconds kLong = std::chrono::duration_cast<milliseconds>(kPatience);
// What a loaded machine may add to a deadline.
constexpr milliseconds kSlack{10'000};

// An endpoint in a process of its own that does what the parent says, one line after the other, and answers with the
// outcome and the milliseconds it took: "publish N MS", "receive N MS", "discard N MS", "close", "join MS".
struct Child {
  ParentPipe pipe;
  SteadyClock clock;
  BufferCache cache{0};
  LoopThread loop{clock, "child-loop"};
  ChannelContext context{makeShmBackend(), &loop.loop(), &clock, nullptr};
  std::string address;
  ChannelSpec spec = smallSpec();

  Child() {
    std::istringstream setup(pipe.next());
    int64_t progress_timeout_ms = 0;
    setup >> address >> progress_timeout_ms;
    spec.progress_timeout = milliseconds(progress_timeout_ms);
  }

  // Until "end". `call` does what is peculiar to the side.
  template <class Endpoint>
  void serve(Endpoint& endpoint,
             const std::function<Status(const std::string& verb, uint64_t number, const WaitOptions& wait)>& call) {
    pipe.send("open");
    for (std::string line = pipe.next(); line != "end"; line = pipe.next()) {
      std::istringstream words(line);
      std::string verb;
      uint64_t number = 0;
      int64_t patience_ms = 0;
      words >> verb;
      if (verb != "close" && verb != "join") words >> number;
      words >> patience_ms;
      const auto start = std::chrono::steady_clock::now();
      WaitOptions wait;
      wait.deadline = start + milliseconds(patience_ms);
      Status status;
      if (verb == "close") {
        endpoint.close();
      } else {
        status = verb == "join" ? endpoint.join(*wait.deadline) : call(verb, number, wait);
      }
      const auto took = std::chrono::duration_cast<milliseconds>(std::chrono::steady_clock::now() - start);
      pipe.send(absl::StatusCodeToString(status.code()) + " " + std::to_string(took.count()));
    }
  }
};

}  // namespace

TEST_CASE("channel stop producer child", "[.][child]") {
  Child child;
  auto producer = openProducer(child.spec, Rank(0), child.address, child.context);
  REQUIRE(producer.ok());
  child.serve(**producer, [&](const std::string&, uint64_t number, const WaitOptions& wait) {
    return (*producer)->publish(SequenceNumber(number), leaf(floats({1000}, static_cast<float>(number))), wait);
  });
}

TEST_CASE("channel stop consumer child", "[.][child]") {
  Child child;
  auto consumer = openConsumer(child.spec, Rank(0), {child.address}, Device{}, child.context);
  REQUIRE(consumer.ok());
  child.serve(**consumer, [&](const std::string& verb, uint64_t number, const WaitOptions& wait) -> Status {
    if (verb == "discard") return (*consumer)->discardAndWait(SequenceNumber(number), "cancelled", wait);
    const auto received = (*consumer)->receive(SequenceNumber(number), child.cache, wait);
    if (!received.ok()) return received.status();
    const auto elements = elementsOf<float>(*received->getIf<TensorView>());
    return elements.front() == static_cast<float>(number) ? absl::OkStatus() : absl::DataLossError("another's data");
  });
}

namespace {

// The two processes, and what they answer.
class Pair {
 public:
  explicit Pair(milliseconds progress_timeout) {
    const std::string setup = dir_.file("p.sock") + " " + std::to_string(progress_timeout.count());
    producer_ = group_.start("channel stop producer child", setup);
    REQUIRE(group_.next(producer_) == "open");
    consumer_ = group_.start("channel stop consumer child", setup);
    REQUIRE(group_.next(consumer_) == "open");
  }

  size_t producer() const { return producer_; }
  size_t consumer() const { return consumer_; }
  void stop(size_t child) { group_.signal(child, SIGSTOP); }
  void resume(size_t child) { group_.signal(child, SIGCONT); }
  void tell(size_t child, const std::string& line) { group_.send(child, line); }

  // The next answer's code; it must have taken `least` and not much more than that.
  std::string answer(size_t child, milliseconds least = milliseconds(0)) {
    const auto text = group_.next(child);
    REQUIRE(text.has_value());
    std::istringstream words(*text);
    std::string code;
    int64_t took_ms = 0;
    words >> code >> took_ms;
    CAPTURE(*text, least.count());
    CHECK(took_ms >= least.count());
    CHECK(took_ms <= (least + kSlack).count());
    return code;
  }
  std::string ask(size_t child, const std::string& line, milliseconds least = milliseconds(0)) {
    tell(child, line);
    return answer(child, least);
  }

  // Both ends let go, and both processes end.
  void end() {
    const std::string patience = std::to_string(kLong.count());
    CHECK(ask(consumer_, "close") == "OK");
    CHECK(ask(producer_, "close") == "OK");
    CHECK(ask(consumer_, "join " + patience) == "OK");
    CHECK(ask(producer_, "join " + patience) == "OK");
    for (const size_t child : {consumer_, producer_}) {
      tell(child, "end");
      CHECK(group_.wait(child) == 0);
    }
  }

 private:
  const TempDir dir_;
  PeerGroup group_;
  size_t producer_ = 0;
  size_t consumer_ = 0;
};

std::string withPatience(const std::string& call, milliseconds patience) {
  return call + " " + std::to_string(patience.count());
}

// Both slots are taken, and nobody will give them back.
void fillSlots(Pair& pair) {
  CHECK(pair.ask(pair.producer(), withPatience("publish 0", kLong)) == "OK");
  CHECK(pair.ask(pair.producer(), withPatience("publish 1", kLong)) == "OK");
}

}  // namespace

TEST_CASE("channel: a call that waits for a stopped consumer ends by its deadline, and the channel goes on",
          "[channel][stop]") {
  Pair pair(kLong);
  pair.stop(pair.consumer());
  fillSlots(pair);
  CHECK(pair.ask(pair.producer(), withPatience("publish 2", kShort), kShort) == "DEADLINE_EXCEEDED");
  pair.tell(pair.consumer(), withPatience("receive 0", kLong));
  pair.resume(pair.consumer());
  CHECK(pair.answer(pair.consumer()) == "OK");
  CHECK(pair.ask(pair.producer(), withPatience("publish 2", kLong)) == "OK");
  CHECK(pair.ask(pair.consumer(), withPatience("receive 1", kLong)) == "OK");
  CHECK(pair.ask(pair.consumer(), withPatience("receive 2", kLong)) == "OK");
  pair.end();
}

TEST_CASE("channel: a call that waits for a stopped producer ends by its deadline, and the channel goes on",
          "[channel][stop]") {
  Pair pair(kLong);
  pair.stop(pair.producer());
  CHECK(pair.ask(pair.consumer(), withPatience("receive 0", kShort), kShort) == "DEADLINE_EXCEEDED");
  CHECK(pair.ask(pair.consumer(), withPatience("discard 1", kShort), kShort) == "DEADLINE_EXCEEDED");
  pair.tell(pair.producer(), withPatience("publish 0", kLong));
  pair.resume(pair.producer());
  CHECK(pair.answer(pair.producer()) == "OK");
  CHECK(pair.ask(pair.consumer(), withPatience("receive 0", kLong)) == "OK");
  // The number that was discarded while the producer stood still.
  CHECK(pair.ask(pair.producer(), withPatience("publish 1", kLong)) == "OK");
  CHECK(pair.ask(pair.producer(), withPatience("publish 2", kLong)) == "OK");
  CHECK(pair.ask(pair.consumer(), withPatience("receive 2", kLong)) == "OK");
  pair.end();
}

TEST_CASE("channel: what a producer published before it stopped is received and acknowledged without it",
          "[channel][stop]") {
  Pair pair(kLong);
  fillSlots(pair);
  pair.stop(pair.producer());
  CHECK(pair.ask(pair.consumer(), withPatience("receive 0", kLong)) == "OK");
  CHECK(pair.ask(pair.consumer(), withPatience("receive 1", kLong)) == "OK");
  pair.resume(pair.producer());
  CHECK(pair.ask(pair.producer(), withPatience("publish 2", kLong)) == "OK");
  CHECK(pair.ask(pair.consumer(), withPatience("receive 2", kLong)) == "OK");
  pair.end();
}

TEST_CASE("channel: a consumer that stays stopped ends the channel, and retires once it runs again [C11]",
          "[channel][stop]") {
  Pair pair(kShort);
  pair.stop(pair.consumer());
  fillSlots(pair);
  CHECK(pair.ask(pair.producer(), withPatience("publish 2", kLong), kShort) == "DEADLINE_EXCEEDED");
  CHECK(pair.ask(pair.producer(), withPatience("publish 3", kLong)) == "DEADLINE_EXCEEDED");  // sticky, at once
  CHECK(pair.ask(pair.producer(), "close") == "OK");
  // It still maps our memory: nobody lets go before it does.
  CHECK(pair.ask(pair.producer(), withPatience("join", kShort), kShort) == "DEADLINE_EXCEEDED");
  pair.resume(pair.consumer());
  CHECK(pair.ask(pair.producer(), withPatience("join", kLong)) == "OK");
  CHECK(pair.ask(pair.consumer(), withPatience("receive 0", kLong)) == "UNAVAILABLE");
  pair.end();
}

TEST_CASE("channel: a producer that stays stopped ends the channel, and retires once it runs again [C11]",
          "[channel][stop]") {
  Pair pair(kShort);
  fillSlots(pair);
  CHECK(pair.ask(pair.consumer(), withPatience("receive 0", kLong)) == "OK");
  pair.stop(pair.producer());
  CHECK(pair.ask(pair.consumer(), withPatience("receive 1", kLong)) == "OK");
  CHECK(pair.ask(pair.consumer(), withPatience("receive 2", kLong), kShort) == "DEADLINE_EXCEEDED");
  CHECK(pair.ask(pair.consumer(), withPatience("receive 3", kLong)) == "DEADLINE_EXCEEDED");
  CHECK(pair.ask(pair.consumer(), "close") == "OK");
  CHECK(pair.ask(pair.consumer(), withPatience("join", kShort), kShort) == "DEADLINE_EXCEEDED");
  pair.resume(pair.producer());
  CHECK(pair.ask(pair.consumer(), withPatience("join", kLong)) == "OK");
  CHECK(pair.ask(pair.producer(), withPatience("publish 2", kLong)) == "UNAVAILABLE");
  pair.end();
}

}  // namespace latentd::channel::testing
