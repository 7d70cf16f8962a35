#pragma once

#include <string>

#include "channel/cuda_ipc_backend.h"
#include "runtime/base/event_loop.h"
#include "tests/channel/channel_rig.h"
#include "tests/channel/cuda/device_tensors.h"

namespace latentd::channel::testing {

// What an endpoint on a device needs: a stream, a loop, an allocator.
struct DeviceEnd {
  explicit DeviceEnd(cuda::DeviceIndex index = kProducerDevice)
      : device(index), stream(*cuda::Stream::create(index)), cache(index) {}

  Device channelDevice() const { return {DeviceType::kCuda, static_cast<uint32_t>(device.value)}; }

  const cuda::DeviceIndex device;
  cuda::Stream stream;
  DeviceCache cache;
  SteadyClock clock;
  LoopThread freeing{clock, "device-freeing"};
  LoopThread loop{clock, "device-loop"};
  ChannelContext context{makeCudaIpcBackend({stream.view()}), &loop.loop(), &clock, nullptr, {}, &freeing.loop()};
};

// One byte pattern for each number.
inline uint8_t patternOf(uint64_t number) { return static_cast<uint8_t>(1 + number % 251); }

}  // namespace latentd::channel::testing
