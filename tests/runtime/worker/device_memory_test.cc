#include "runtime/worker/device_memory.h"

#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDACachingAllocator.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <thread>

#include "runtime/base/mutex.h"
#include "runtime/worker/exception_boundary.h"
#include "runtime/worker/memory_sampler.h"
#include "runtime/worker/worker_device.h"
#include "tests/stages/cuda_device.h"
#include "tests/support/catch.h"
#include "tests/support/child_test_case.h"
#include "tests/support/contains_text.h"

namespace latentd::worker {
namespace {

using latentd::testing::ChildTestCase;
using latentd::testing::containsText;
using stages::testing::cudaDevice;
using stages::testing::hasCuda;

constexpr uint64_t kMebibyte = uint64_t{1} << 20;

at::Tensor allocate(uint64_t bytes) {
  return at::empty({static_cast<int64_t>(bytes)}, at::TensorOptions().dtype(at::kByte).device(cudaDevice()));
}

TEST_CASE("device memory: a process without a device has nothing to tell and nothing to fail", "[worker]") {
  CHECK(torchMemory("cpu").reserved_bytes == 0);
  CHECK(torchMemory("cuda:99").reserved_bytes == 0);
  CHECK_FALSE(deviceLost());
  CHECK(releaseAndProbeDevices(kMebibyte));
}

TEST_CASE("device memory: who asks for a sample never waits for the device, and gets the last one", "[worker]") {
  Mutex busy;  // as torch's allocator is while the driver works
  std::atomic<uint64_t> bytes{1};
  std::atomic<bool> waits{false};
  const auto eventually = [](const auto& holds) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (!holds() && std::chrono::steady_clock::now() < end)
      std::this_thread::yield();
    return holds();
  };
  MemorySampler sampler([&] {
    waits = true;
    MutexLock lock(busy);
    waits = false;
    return TorchMemory{bytes, 0};
  });
  REQUIRE(eventually([&] { return sampler.latest().allocated_bytes == 1; }));
  {
    MutexLock lock(busy);
    bytes = 2;
    (void)sampler.latest();
    REQUIRE(eventually([&] { return waits.load(); }));
    for (int i = 0; i < 100; ++i)
      CHECK(sampler.latest().allocated_bytes == 1);
  }
  CHECK(eventually([&] { return sampler.latest().allocated_bytes == 2; }));
}

TEST_CASE("device memory: tensors are allocated, what they leave behind is reserved until released", "[worker][cuda]") {
  if (!hasCuda()) return;
  const TorchMemory before = torchMemory("cuda:0");
  at::Tensor tensor = allocate(64 * kMebibyte);
  CHECK(torchMemory("cuda:0").allocated_bytes == before.allocated_bytes + 64 * kMebibyte);
  tensor = at::Tensor();
  CHECK(torchMemory("cuda:0").allocated_bytes == before.allocated_bytes);
  CHECK(torchMemory("cuda:0").reserved_bytes >= 64 * kMebibyte);
  CHECK_THAT(describeDeviceMemory(), containsText("cuda:0") && containsText("MiB reserved") && containsText("free"));
  REQUIRE(releaseAndProbeDevices(kMebibyte));
  CHECK(torchMemory("cuda:0").reserved_bytes < 64 * kMebibyte);
}

TEST_CASE("device memory: a job that asks for too much fails with the sizes, and the next one runs", "[worker][cuda]") {
  if (!hasCuda()) return;
  const GuardedResult result = runGuarded([] {
    const at::Tensor kept = allocate(32 * kMebibyte);
    allocate(uint64_t{1} << 50);
    return absl::OkStatus();
  });
  CHECK(result.status.code() == absl::StatusCode::kResourceExhausted);
  CHECK(result.clean);
  CHECK_THAT(messageOf(result.status), containsText("1048576.00 GiB") && containsText("in tensors") &&
                                           containsText("MiB reserved") && containsText("MiB free"));
  CHECK(releaseAndProbeDevices(kMebibyte));
  CHECK(runGuarded([] {
          CHECK(allocate(kMebibyte).fill_(1).sum().item<int64_t>() == kMebibyte);
          return absl::OkStatus();
        }).status.ok());
}

TEST_CASE("device memory: an ordinary failure leaves the device as it is", "[worker][cuda]") {
  if (!hasCuda()) return;
  const GuardedResult result = runGuarded([] {
    const at::Tensor wide = at::zeros({2, 3}, at::TensorOptions().device(cudaDevice()));
    wide.add(at::zeros({5}, wide.options()));
    return absl::OkStatus();
  });
  CHECK(result.status.code() == absl::StatusCode::kInternal);
  CHECK(result.clean);
  CHECK_FALSE(deviceLost());
}

TEST_CASE("device memory: after a sticky error nothing else runs in the process", "[worker][cuda]") {
  if (!hasCuda()) return;
  ChildTestCase child("device memory child that loses its device");
  CHECK(child.wait(std::chrono::seconds(60)) == 0);
}

TEST_CASE("device memory: torch's allocator is there before another thread can ask it", "[worker][cuda]") {
  if (!hasCuda()) return;
  ChildTestCase child("device memory child that opens its device");
  CHECK(child.wait(std::chrono::seconds(60)) == 0);
}

TEST_CASE("device memory child that opens its device", "[.][child]") {
  const auto initialized = [] { return c10::cuda::CUDACachingAllocator::get()->initialized(); };
  const bool before = initialized();
  const auto device = WorkerDevice::open({channel::DeviceType::kCuda, 0}, std::chrono::seconds(1));
  std::_Exit(!before && device.ok() && initialized() ? 0 : 1);
}

TEST_CASE("device memory child that loses its device", "[.][child]") {
  const auto options = at::TensorOptions().device(cudaDevice());
  const at::Tensor table = at::zeros({4, 4}, options);
  const GuardedResult result = runGuarded([&] {
    const at::Tensor beyond = at::full({1}, 4711, options.dtype(at::kLong));
    at::embedding(table, beyond).sum().item();
    return absl::OkStatus();
  });
  const bool told = result.status.code() == absl::StatusCode::kDataLoss && !result.clean && deviceLost();
  const bool nothing_left = !releaseAndProbeDevices(kMebibyte);
  // Also a status that says nothing of a device.
  const bool sticks = !runGuarded([] { return absl::CancelledError("by the test"); }).clean;
  // At once: destructors of device objects may end a process that lost its device otherwise.
  std::_Exit(told && nothing_left && sticks ? 0 : 1);
}

}  // namespace
}  // namespace latentd::worker
