#include "channel/shm_backend.h"
#include "tests/channel/kill_suite.h"
#include "tests/channel/tensors.h"
#include "tests/support/catch.h"

namespace latentd::channel::testing {
namespace {

class HostKillBackend final : public KillBackend {
 public:
  std::shared_ptr<Backend> backend() override { return backend_; }
  Device device() const override { return {}; }
  Allocator& allocator() override { return cache_; }
  TensorView floats(int64_t count, float first) override { return testing::floats({count}, first); }
  float floatAt(const TensorView& view, int64_t index) override { return static_cast<const float*>(view.data)[index]; }

 private:
  const std::shared_ptr<Backend> backend_ = makeShmBackend();
  BufferCache cache_{0};
};

}  // namespace

std::shared_ptr<KillBackend> makeKillBackend(const std::string&, Side) { return std::make_shared<HostKillBackend>(); }

TEST_CASE("channel: SIGKILL of either side in every slot state [C15]", "[channel][kill]") {
  killInEveryState("shm", false);
}

TEST_CASE("channel: random kills, short", "[channel][kill]") {
  std::mt19937 random(20'260'701);
  killAtRandom("shm", random, 10);
}

// LATENTD_TEST_SEED=N replays a run.
TEST_CASE("channel: random kills, long", "[.][chaos]") {
  const uint32_t seed = testSeed();
  CAPTURE(seed);
  std::mt19937 random(seed);
  killAtRandom("shm", random, 1000);
}

}  // namespace latentd::channel::testing
