#include "stages/device/step_pacer.h"

#include <ATen/cuda/Sleep.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDAStream.h>

#include <chrono>
#include <optional>
#include <thread>

#include "stages/device/transfer.h"
#include "stages/step_timer.h"
#include "tests/stages/cuda_device.h"
#include "tests/stages/golden.h"
#include "tests/stages/wan/step_recorder.h"

namespace latentd::stages {
namespace {

using std::chrono::milliseconds;
using testing::cudaDevice;
using testing::StepRecorder;
using Steps = std::vector<uint32_t>;

TEST_CASE("step pacer: on a CPU a step is complete when it was submitted", "[stages]") {
  StepRecorder context;
  StepPacer pacer(context, at::kCPU, 2);
  bool delivered = false;
  REQUIRE(pacer.begin(0).ok());
  CHECK(context.finished().empty());
  REQUIRE(pacer
              .submitted([&] {
                CHECK(context.finished().empty());
                delivered = true;
                return absl::OkStatus();
              })
              .ok());
  CHECK(delivered);
  CHECK(context.finished() == Steps{0});
  REQUIRE(pacer.begin(1).ok());
  CHECK(pacer.submitted([] { return absl::UnavailableError("the reader died"); }).code() ==
        absl::StatusCode::kUnavailable);
  CHECK(context.finished() == Steps{0});
}

TEST_CASE("step pacer: a method of short steps is near its end when its last one begins, others later", "[stages]") {
  const auto nearEnd = [](milliseconds step_time) {
    StepRecorder context;
    StepPacer pacer(context, at::kCPU, 3);
    for (uint32_t step = 0; step < 3; ++step) {
      REQUIRE(pacer.begin(step).ok());
      if (step_time > milliseconds(0)) std::this_thread::sleep_for(step_time);
      REQUIRE(pacer.submitted().ok());
    }
    REQUIRE(pacer.finish().ok());
    return context.nearEndAfter();
  };
  CHECK(nearEnd(milliseconds(20)) == std::nullopt);
  // On a busy machine a short step may take long.
  const auto patience = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (nearEnd(milliseconds(0)) != 2u)
    REQUIRE(std::chrono::steady_clock::now() < patience);
}

TEST_CASE("step timer: a step begun early counts from the end of the one before", "[stages]") {
  const StepTimer::TimePoint start{};
  StepTimer timer;
  timer.begin(0, start + milliseconds(10));
  timer.begin(1, start + milliseconds(11));
  CHECK(timer.finish(0, start + milliseconds(30)) == milliseconds(20));
  timer.begin(2, start + milliseconds(31));
  CHECK(timer.finish(1, start + milliseconds(55)) == milliseconds(25));
  CHECK(timer.finish(2, start + milliseconds(60)) == milliseconds(5));
  timer.begin(3, start + milliseconds(70));
  CHECK(timer.finish(3, start + milliseconds(71)) == milliseconds(1));
}

TEST_CASE("transfer: a tensor that is where it should be is not copied", "[stages]") {
  const at::Tensor here = at::zeros({3});
  CHECK(toDevice(here, at::kCPU).data_ptr() == here.data_ptr());
  CHECK(toPinnedHost(here).data_ptr() == here.data_ptr());
}

// ---- on a device --------------------------------------------------------------------------------------------

// Keeps the device busy for a few hundred milliseconds: cycles of about 2 GHz.
void occupyDevice() { at::cuda::sleep(int64_t{600'000'000}); }

// The first use of a kernel, or of pinned memory, waits for the device.
void useOnce(const at::Tensor& counter) {
  at::cuda::sleep(1);
  const at::Tensor host = toPinnedHost(counter.add_(0));
  c10::cuda::getCurrentCUDAStream(counter.get_device()).synchronize();
}

TEST_CASE("step pacer: a step is reported when the device completed it, and two are in flight", "[stages][cuda]") {
  if (!testing::hasCuda()) return;
  StepRecorder context;
  at::Tensor counter = at::zeros({1}, at::TensorOptions().device(cudaDevice()));
  useOnce(counter);
  const testing::HostNeverWaits guard;
  StepPacer pacer(context, cudaDevice(), 3);
  std::vector<float> delivered;
  const auto submit = [&](uint32_t step) {
    REQUIRE(pacer.begin(step).ok());
    occupyDevice();
    counter.add_(1);
    const at::Tensor host = toPinnedHost(counter);
    REQUIRE(pacer
                .submitted([&delivered, host] {
                  delivered.push_back(host.const_data_ptr<float>()[0]);
                  return absl::OkStatus();
                })
                .ok());
  };
  submit(0);
  CHECK(context.finished().empty());
  submit(1);
  CHECK(context.finished().empty());
  submit(2);
  CHECK(context.begun() == Steps{0, 1, 2});
  CHECK(context.finished() == Steps{0});
  REQUIRE(pacer.finish().ok());
  CHECK(context.finished() == Steps{0, 1, 2});
  CHECK(context.nearEndAfter() == 3u);
  // What was copied is what each step had made, not what the next one did to it.
  CHECK(delivered == std::vector<float>{1, 2, 3});
}

TEST_CASE("step pacer: a cancelled method ends with the device idle and its complete steps reported",
          "[stages][cuda]") {
  if (!testing::hasCuda()) return;
  StepRecorder context(1);
  const at::Tensor done = at::zeros({1}, at::TensorOptions().device(cudaDevice()));
  at::Tensor host;
  StepPacer pacer(context, cudaDevice(), 3);
  REQUIRE(pacer.begin(0).ok());
  occupyDevice();
  host = toPinnedHost(done.add(1));
  REQUIRE(pacer.submitted().ok());
  CHECK(pacer.begin(1).code() == absl::StatusCode::kCancelled);
  CHECK(host.const_data_ptr<float>()[0] == 1);
  CHECK(context.finished() == Steps{0});
}

TEST_CASE("step pacer: a method that ends early leaves nothing on the device", "[stages][cuda]") {
  if (!testing::hasCuda()) return;
  StepRecorder context;
  const at::Tensor done = at::zeros({1}, at::TensorOptions().device(cudaDevice()));
  at::Tensor host;
  {
    StepPacer pacer(context, cudaDevice(), 3);
    REQUIRE(pacer.begin(0).ok());
    occupyDevice();
    host = toPinnedHost(done.add(1));
    REQUIRE(pacer.submitted().ok());
  }
  CHECK(host.const_data_ptr<float>()[0] == 1);
  CHECK(context.finished().empty());
}

TEST_CASE("transfer: there and back, without a wait of the host", "[stages][cuda]") {
  if (!testing::hasCuda()) return;
  StepRecorder context;
  StepPacer pacer(context, cudaDevice(), 1);
  const at::Tensor here = at::full({1 << 20}, 7.0);
  at::Tensor back;
  {
    const testing::HostNeverWaits guard;
    REQUIRE(pacer.begin(0).ok());
    const at::Tensor there = toDevice(here, cudaDevice());
    CHECK(there.device() == cudaDevice());
    back = toPinnedHost(there.add(1));
    REQUIRE(pacer.submitted().ok());
    REQUIRE(pacer.finish().ok());
  }
  CHECK(back.is_pinned());
  CHECK(back.equal(here.add(1)));
}

}  // namespace
}  // namespace latentd::stages
