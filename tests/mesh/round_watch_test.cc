#include "mesh/round_watch.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <future>
#include <string>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/contains_text.h"

namespace latentd::mesh {
namespace {

using latentd::testing::containsText;
using std::chrono::milliseconds;
using std::chrono::seconds;
using Mark = RoundFlags::Mark;

// Where nobody waits for a deadline, and how long whatever is to happen may take.
constexpr milliseconds kLong{120'000};
constexpr seconds kPatience{60};

// This process as rank 0 of two, whose device is a word that the test writes, and another process as rank 1.
class Device {
 public:
  Device() : pages_(makePages()), flags_(makeFlags()) {}
  ~Device() { kill(); }

  RoundFlags& flags() { return flags_; }
  std::function<void(const Status&)> giveUp() {
    return [this](const Status& cause) { cause_.set_value(cause); };
  }
  // What the watch says; the test fails if it says nothing.
  Status cause() {
    std::future<Status> said = cause_.get_future();
    REQUIRE(said.wait_for(kPatience) == std::future_status::ready);
    return said.get();
  }
  void reach(uint32_t round) { word(pages_[0], RoundFlags::reachedOffset()).store(round); }
  uint32_t seen(Mark mark) { return word(pages_[0], RoundFlags::offsetOf(1, mark)).load(); }
  void writeAsPeer(Mark mark, uint32_t round) { word(pages_[0], RoundFlags::offsetOf(1, mark)).store(round); }
  void kill() {
    if (peer_ <= 0) return;
    ::kill(peer_, SIGKILL);
    ::waitpid(peer_, nullptr, 0);
    peer_ = -1;
  }

 private:
  static std::atomic<uint32_t>& word(const ShmRegion& page, size_t offset) {
    return *reinterpret_cast<std::atomic<uint32_t>*>(page.data() + offset);
  }

  std::vector<ShmRegion> makePages() {
    std::vector<ShmRegion> pages;
    for (int rank = 0; rank < 2; ++rank) {
      auto page = ShmRegion::create("latentd-test-flags", RoundFlags::pageBytes(2));
      REQUIRE(page.ok());
      pages.push_back(*std::move(page));
    }
    RoundFlags::initialize(pages[0]);
    int told[2];
    REQUIRE(::pipe(told) == 0);
    peer_ = ::fork();
    if (peer_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      RoundFlags::initialize(pages[1]);  // as its owner
      (void)!::write(told[1], "x", 1);
      while (true)
        ::pause();
    }
    char byte = 0;
    REQUIRE(::read(told[0], &byte, 1) == 1);
    ::close(told[0]);
    ::close(told[1]);
    return pages;
  }

  RoundFlags makeFlags() const {
    std::vector<ShmRegion> mapped;
    for (const ShmRegion& page : pages_) {
      auto fd = duplicateFd(page.fd());
      REQUIRE(fd.ok());
      auto region = ShmRegion::map(*std::move(fd), RoundFlags::pageBytes(2));
      REQUIRE(region.ok());
      mapped.push_back(*std::move(region));
    }
    auto flags = RoundFlags::make(0, {Rank(4), Rank(6)}, std::move(mapped));
    REQUIRE(flags.ok());
    return *std::move(flags);
  }

  pid_t peer_ = -1;
  std::vector<ShmRegion> pages_;
  RoundFlags flags_;
  std::promise<Status> cause_;
};

// Until it holds; the test fails if that takes too long.
template <class Condition>
void eventually(Condition condition) {
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (!condition()) {
    REQUIRE(std::chrono::steady_clock::now() < end);
    std::this_thread::sleep_for(milliseconds(1));
  }
}

TEST_CASE("round watch: a peer that dies while a device waits for it is told, and the device let through [M13]",
          "[mesh]") {
  Device device;
  RoundWatch watch(device.flags(), kLong, device.giveUp());
  watch.begun(1);
  device.kill();
  const Status cause = device.cause();
  CHECK(absl::IsUnavailable(cause));
  CHECK_THAT(messageOf(cause), containsText("rank 6 has died"));
  watch.end();
  CHECK(static_cast<int32_t>(device.seen(Mark::kFree) - 1000) > 0);
  CHECK(static_cast<int32_t>(device.seen(Mark::kWritten) - 1000) > 0);
  device.reach(1);
}

TEST_CASE("round watch: what a peer still writes does not hold a device back after the end [M13]", "[mesh]") {
  Device device;
  RoundWatch watch(device.flags(), kLong, device.giveUp());
  watch.begun(3);
  watch.end();
  device.writeAsPeer(Mark::kWritten, 2);
  eventually([&] { return static_cast<int32_t>(device.seen(Mark::kWritten) - 3) >= 0; });
  device.reach(3);
}

TEST_CASE("round watch: a round that does not come to its end is told at the deadline", "[mesh]") {
  Device device;
  RoundWatch watch(device.flags(), milliseconds(50), device.giveUp());
  device.reach(8);
  watch.begun(9);
  const Status cause = device.cause();
  CHECK(absl::IsDeadlineExceeded(cause));
  CHECK_THAT(messageOf(cause), containsText("scatter round 9: not done within 50 ms"));
  watch.end();
}

TEST_CASE("round watch: nobody is looked at while no round is under way", "[mesh]") {
  Device device;
  bool told = false;
  {
    RoundWatch watch(device.flags(), milliseconds(1), [&](const Status&) { told = true; });
    device.reach(2);
    watch.begun(2);
    device.kill();
    std::this_thread::sleep_for(milliseconds(200));
  }
  CHECK_FALSE(told);
}

}  // namespace
}  // namespace latentd::mesh
