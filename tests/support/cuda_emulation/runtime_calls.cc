#include <cuda_runtime_api.h>

#include <bit>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "tests/support/cuda_emulation/emulated_event.h"
#include "tests/support/cuda_emulation/emulated_memory.h"
#include "tests/support/cuda_emulation/emulated_stream.h"
#include "tests/support/cuda_emulation/shared_object.h"

// The calls of the CUDA runtime that the channel makes, without a device: a program that links this needs no GPU. What
// it shows is the order of things: what waits for what, who may be killed when. It shows nothing of speed, of the
// driver, or of what kernels do. Memory is the host's, streams are threads, events and memory cross processes through
// /proc. LATENTD_EMULATED_DEVICES: how many devices there are (2), all of them peers.
namespace latentd::testing {
namespace {

thread_local int current_device = 0;
thread_local cudaError_t last_error = cudaSuccess;

cudaError_t end(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

int devices() {
  const char* const text = std::getenv("LATENTD_EMULATED_DEVICES");
  return text == nullptr ? 2 : std::atoi(text);
}

EmulatedMemory& memory() { return EmulatedMemory::instance(); }

// A handle of the runtime is a shared pointer to what it stands for.
template <class Raw, class Emulated>
Raw give(std::shared_ptr<Emulated> emulated) {
  return reinterpret_cast<Raw>(new std::shared_ptr<Emulated>(std::move(emulated)));
}
template <class Emulated, class Raw>
std::shared_ptr<Emulated>& held(Raw raw) {
  return *reinterpret_cast<std::shared_ptr<Emulated>*>(raw);
}
std::shared_ptr<EmulatedEvent>& event(cudaEvent_t raw) { return held<EmulatedEvent>(raw); }
EmulatedStream& stream(cudaStream_t raw) {
  static auto* const of_nobody = new std::shared_ptr<EmulatedStream>(EmulatedStream::start(0));
  return raw == nullptr ? **of_nobody : *held<EmulatedStream>(raw);
}

struct Rows {
  void* target;
  size_t target_pitch;
  const void* source;
  size_t source_pitch;
  size_t width;
  size_t height;

  // From the first byte to the last, of one side.
  size_t extent(size_t pitch) const { return pitch * (height - 1) + width; }
  void copy() const {
    for (size_t row = 0; row < height; ++row) {
      std::memcpy(static_cast<char*>(target) + row * target_pitch,
                  static_cast<const char*>(source) + row * source_pitch, width);
    }
  }
};

cudaError_t submitCopy(Rows rows, EmulatedStream& stream) {
  if (rows.width == 0 || rows.height == 0) return cudaSuccess;
  const size_t source_bytes = rows.extent(rows.source_pitch);
  if (!memory().isInBounds(rows.source, source_bytes) ||
      !memory().isInBounds(rows.target, rows.extent(rows.target_pitch))) {
    return end(cudaErrorInvalidValue);
  }
  std::shared_ptr<std::vector<char>> staged;
  if (memory().isPageable(rows.source)) {
    const auto* const begin = static_cast<const char*>(rows.source);
    staged = std::make_shared<std::vector<char>>(begin, begin + source_bytes);
    rows.source = staged->data();
  }
  stream.submit([rows, staged] { rows.copy(); });
  if (memory().isPageable(rows.target)) stream.synchronize();
  return cudaSuccess;
}

cudaError_t giveEvent(std::shared_ptr<EmulatedEvent> event, cudaEvent_t* raw, cudaError_t otherwise) {
  if (event == nullptr) return end(otherwise);
  *raw = give<cudaEvent_t>(std::move(event));
  return cudaSuccess;
}

}  // namespace
}  // namespace latentd::testing

using latentd::testing::EmulatedEvent;
using latentd::testing::EmulatedMemory;
using latentd::testing::EmulatedStream;
using latentd::testing::SharedObject;
namespace emulated = latentd::testing;

extern "C" {

// ---- devices ----------------------------------------------------------------------------------------------------
cudaError_t cudaGetDeviceCount(int* count) {
  *count = emulated::devices();
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = emulated::current_device;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= emulated::devices()) return emulated::end(cudaErrorInvalidDevice);
  emulated::current_device = device;
  return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  *can = device != peer;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  *value = 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -1;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  *properties = {};
  std::memcpy(properties->uuid.bytes, "emulated", 8);
  properties->uuid.bytes[15] = static_cast<char>(device);
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  *total_bytes = EmulatedMemory::kDeviceBytes;
  *free_bytes = emulated::memory().freeBytes();
  return cudaSuccess;
}

// ---- errors -----------------------------------------------------------------------------------------------------
cudaError_t cudaGetLastError() { return std::exchange(emulated::last_error, cudaSuccess); }
const char* cudaGetErrorName(cudaError_t) { return "emulated error"; }
const char* cudaGetErrorString(cudaError_t error) {
  static thread_local char text[32];
  std::snprintf(text, sizeof(text), "error %d", static_cast<int>(error));
  return text;
}

// ---- memory -----------------------------------------------------------------------------------------------------
cudaError_t cudaMalloc(void** address, size_t bytes) {
  return emulated::end(emulated::memory().allocate(bytes, address));
}
cudaError_t cudaFree(void* address) {
  EmulatedStream::synchronizeAll();
  return emulated::end(emulated::memory().free(address));
}
cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* address) {
  return emulated::end(emulated::memory().exportHandle(address, handle));
}
cudaError_t cudaIpcOpenMemHandle(void** address, cudaIpcMemHandle_t handle, unsigned) {
  return emulated::end(emulated::memory().import(handle, address));
}
cudaError_t cudaIpcCloseMemHandle(void* address) { return emulated::end(emulated::memory().close(address)); }
cudaError_t cudaHostRegister(void* address, size_t bytes, unsigned) {
  emulated::memory().pin(address, bytes);
  return cudaSuccess;
}
cudaError_t cudaHostUnregister(void* address) { return emulated::end(emulated::memory().unpin(address)); }
cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned) {
  *device = host;
  return cudaSuccess;
}

// ---- copies -----------------------------------------------------------------------------------------------------
cudaError_t cudaMemcpyAsync(void* target, const void* source, size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  return emulated::submitCopy({target, bytes, source, bytes, bytes, 1}, emulated::stream(stream));
}
cudaError_t cudaMemcpy2DAsync(void* target, size_t target_pitch, const void* source, size_t source_pitch, size_t width,
                              size_t height, cudaMemcpyKind, cudaStream_t stream) {
  constexpr size_t kPitchMax = (size_t{1} << 31) - 1;
  for (const size_t pitch : {target_pitch, source_pitch}) {
    if (width > pitch || pitch > kPitchMax) return emulated::end(cudaErrorInvalidPitchValue);
  }
  return emulated::submitCopy({target, target_pitch, source, source_pitch, width, height}, emulated::stream(stream));
}
cudaError_t cudaMemsetAsync(void* target, int value, size_t bytes, cudaStream_t stream) {
  if (!emulated::memory().isInBounds(target, bytes)) return emulated::end(cudaErrorInvalidValue);
  emulated::stream(stream).submit([=] { std::memset(target, value, bytes); });
  return cudaSuccess;
}

// ---- streams ----------------------------------------------------------------------------------------------------
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* raw, unsigned, int) {
  *raw = emulated::give<cudaStream_t>(EmulatedStream::start(emulated::current_device));
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t raw) {
  delete &emulated::held<EmulatedStream>(raw);
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return emulated::end(emulated::stream(stream).isIdle() ? cudaSuccess : cudaErrorNotReady);
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  emulated::stream(stream).synchronize();
  return cudaSuccess;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* argument) {
  emulated::stream(stream).submit([=] { function(argument); });
  return cudaSuccess;
}

// ---- events -----------------------------------------------------------------------------------------------------
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* raw, unsigned flags) {
  const bool interprocess = (flags & cudaEventInterprocess) != 0;
  return emulated::giveEvent(EmulatedEvent::create(emulated::current_device, interprocess), raw,
                             cudaErrorMemoryAllocation);
}
cudaError_t cudaEventDestroy(cudaEvent_t raw) {
  delete &emulated::event(raw);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t raw, cudaStream_t stream) {
  const std::shared_ptr<EmulatedEvent> event = emulated::event(raw);
  if (event->device() != emulated::stream(stream).device()) return emulated::end(cudaErrorInvalidResourceHandle);
  const uint64_t record = event->submit();
  emulated::stream(stream).submit([event, record] { event->reach(record); });
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t raw, unsigned) {
  const std::shared_ptr<EmulatedEvent> event = emulated::event(raw);
  const uint64_t record = event->submitted();
  emulated::stream(stream).submit([event, record] { event->waitReached(record); });
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t raw) {
  const EmulatedEvent& event = *emulated::event(raw);
  return emulated::end(event.isReached(event.submitted()) ? cudaSuccess : cudaErrorNotReady);
}
cudaError_t cudaEventSynchronize(cudaEvent_t raw) {
  const EmulatedEvent& event = *emulated::event(raw);
  event.waitReached(event.submitted());
  return cudaSuccess;
}
cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t* raw, cudaEvent_t event) {
  const std::optional<SharedObject::Handle> handle = emulated::event(event)->handle();
  if (!handle) return emulated::end(cudaErrorInvalidResourceHandle);
  *raw = std::bit_cast<cudaIpcEventHandle_t>(*handle);
  return cudaSuccess;
}
cudaError_t cudaIpcOpenEventHandle(cudaEvent_t* raw, cudaIpcEventHandle_t handle) {
  const auto wanted = std::bit_cast<SharedObject::Handle>(handle);
  return emulated::giveEvent(EmulatedEvent::import(emulated::current_device, wanted), raw,
                             cudaErrorInvalidResourceHandle);
}

}  // extern "C"
