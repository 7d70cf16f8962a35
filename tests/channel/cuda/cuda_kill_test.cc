#include "channel/cuda_ipc_backend.h"
#include "runtime/cuda/event.h"
#include "tests/channel/cuda/device_tensors.h"
#include "tests/channel/kill_suite.h"
#include "tests/channel/tensors.h"
#include "tests/support/catch.h"

namespace latentd::channel::testing {
namespace {

class CudaKillBackend final : public KillBackend {
 public:
  // "cuda_ipc" or "cuda_ipc_large": what a kill interrupts is then a copy rather than a moment between two.
  CudaKillBackend(const std::string& transport, Side side)
      : elements_(transport == "cuda_ipc_large" ? 16 << 20 : 0),
        device_(side == Side::kProducer ? kProducerDevice : consumerDevice()),
        stream_(*cuda::Stream::create(device_)),
        backend_(makeCudaIpcBackend({stream_.view(), std::chrono::milliseconds(5000)})),
        cache_(device_) {
    // The driver opens a descriptor at the first export of a process, and keeps it.
    auto buffer = cuda::DeviceBuffer::allocate(device_, 2 << 20);
    auto event = cuda::Event::createInterprocess(device_);
    REQUIRE(buffer.ok());
    REQUIRE(event.ok());
    REQUIRE(buffer->exportHandle().ok());
    REQUIRE(event->exportHandle().ok());
  }

  std::shared_ptr<Backend> backend() override { return backend_; }
  Device device() const override { return {DeviceType::kCuda, static_cast<uint32_t>(device_.value)}; }
  Allocator& allocator() override { return cache_; }

  TensorView floats(int64_t count, float first) override {
    if (elements_ > 0) count = elements_;
    // Made once: that of a large tensor takes longer than its copies, which kills are to meet.
    if (host_.empty()) host_ = elementsOf<float>(testing::floats({count}, 0));
    for (int64_t i = 0; i < kTold; ++i)
      host_[static_cast<size_t>(i)] = first + static_cast<float>(i);
    auto view = cache_.allocate(DType::kFloat32, {count}, device());
    REQUIRE(view.ok());
    upload(*view, host_.data(), stream_.view());
    return *view;
  }
  float floatAt(const TensorView& view, int64_t index) override {
    const std::vector<std::byte> bytes = download(view, stream_.view());
    return reinterpret_cast<const float*>(bytes.data())[index];
  }

 private:
  static constexpr int64_t kTold = 64;  // elements that tell one number from another

  const int64_t elements_;
  std::vector<float> host_;
  const cuda::DeviceIndex device_;
  cuda::Stream stream_;
  const std::shared_ptr<Backend> backend_;
  DeviceCache cache_;
};

}  // namespace

std::shared_ptr<KillBackend> makeKillBackend(const std::string& transport, Side side) {
  return std::make_shared<CudaKillBackend>(transport, side);
}

TEST_CASE("channel: SIGKILL of either side in every slot state over CUDA IPC [C15]", "[channel][kill][cuda]") {
  killInEveryState("cuda_ipc", true);
}

TEST_CASE("channel: random kills over CUDA IPC", "[channel][kill][cuda]") {
  std::mt19937 random(20'260'701);
  killAtRandom("cuda_ipc", random, 10);
}

TEST_CASE("channel: random kills in the middle of copies over CUDA IPC", "[channel][kill][cuda]") {
  std::mt19937 random(20'260'702);
  killAtRandom("cuda_ipc_large", random, 10);
}

// LATENTD_TEST_SEED=N replays a run.
TEST_CASE("channel: random kills over CUDA IPC, long", "[.][chaos][cuda]") {
  const uint32_t seed = testSeed();
  CAPTURE(seed);
  std::mt19937 random(seed);
  killAtRandom(seed % 2 == 0 ? "cuda_ipc" : "cuda_ipc_large", random, 100);
}

}  // namespace latentd::channel::testing
