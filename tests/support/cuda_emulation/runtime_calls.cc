#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "runtime/base/mutex.h"
#include "tests/support/cuda_emulation/emulated_event.h"
#include "tests/support/cuda_emulation/emulated_stream.h"
#include "tests/support/cuda_emulation/shared_object.h"

// The calls of the CUDA runtime that the channel makes, without a device: a program that links this needs no GPU. What
// it shows is the order of things: what waits for what, who may be killed when. It shows nothing of speed, of the
// driver, or of what kernels do. Memory is the host's, streams are threads, events and memory cross processes through
// /proc. LATENTD_EMULATED_DEVICES: how many devices there are (2), all of them peers.
namespace latentd::testing {
namespace {

constexpr uint64_t kDeviceBytes = uint64_t{64} << 30;

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

// By address. Never destroyed: threads of streams outlive main().
struct Memory {
  Mutex mutex;
  std::map<const void*, std::unique_ptr<SharedObject>> objects GUARDED_BY(mutex);
  std::map<const void*, uint64_t> pinned GUARDED_BY(mutex);  // sizes of host memory
  uint64_t bytes GUARDED_BY(mutex) = 0;                      // that were allocated here
};
Memory& memory() {
  static auto* const memory = new Memory;
  return *memory;
}

template <class Size, class Ranges>
bool isIn(const Ranges& ranges, const void* address, Size size) {
  const auto after = ranges.upper_bound(address);
  if (after == ranges.begin()) return false;
  const auto& [begin, range] = *std::prev(after);
  return address < static_cast<const char*>(begin) + size(range);
}
// Neither a device's nor pinned: the runtime reads it before a call returns, and has written it when one returns.
bool isPageable(const void* address) {
  const MutexLock lock(memory().mutex);
  return !isIn(memory().objects, address, [](const auto& object) { return object->bytes(); }) &&
         !isIn(memory().pinned, address, [](uint64_t bytes) { return bytes; });
}

// A handle of the runtime is a shared pointer to what it stands for.
template <class Emulated, class Raw>
std::shared_ptr<Emulated>& held(Raw raw) {
  return *reinterpret_cast<std::shared_ptr<Emulated>*>(raw);
}
EmulatedStream& stream(cudaStream_t raw) {
  static auto* const of_nobody = new std::shared_ptr<EmulatedStream>(EmulatedStream::start());
  return raw == nullptr ? **of_nobody : *held<EmulatedStream>(raw);
}
std::shared_ptr<EmulatedEvent>& event(cudaEvent_t raw) { return held<EmulatedEvent>(raw); }

struct Rows {
  void* target;
  size_t target_pitch;
  const void* source;
  size_t source_pitch;
  size_t width;
  size_t height;

  void copy() const {
    for (size_t row = 0; row < height; ++row) {
      std::memcpy(static_cast<char*>(target) + row * target_pitch,
                  static_cast<const char*>(source) + row * source_pitch, width);
    }
  }
};

cudaError_t submitCopy(Rows rows, EmulatedStream& stream) {
  if (rows.width > rows.target_pitch || rows.width > rows.source_pitch) return end(cudaErrorInvalidPitchValue);
  if (rows.width == 0 || rows.height == 0) return cudaSuccess;
  std::shared_ptr<std::vector<char>> staged;
  if (isPageable(rows.source)) {
    const auto* const begin = static_cast<const char*>(rows.source);
    staged = std::make_shared<std::vector<char>>(begin, begin + rows.source_pitch * (rows.height - 1) + rows.width);
    rows.source = staged->data();
  }
  stream.submit([rows, staged] { rows.copy(); });
  if (isPageable(rows.target)) stream.synchronize();
  return cudaSuccess;
}

cudaError_t give(std::shared_ptr<EmulatedEvent> event, cudaEvent_t* raw, cudaError_t otherwise) {
  if (event == nullptr) return end(otherwise);
  *raw = reinterpret_cast<cudaEvent_t>(new std::shared_ptr<EmulatedEvent>(std::move(event)));
  return cudaSuccess;
}

cudaError_t give(std::unique_ptr<SharedObject> object, void** address, cudaError_t otherwise) {
  if (object == nullptr) return end(otherwise);
  const MutexLock lock(memory().mutex);
  *address = object->data();
  memory().objects[*address] = std::move(object);
  return cudaSuccess;
}

template <class Raw>
cudaError_t exportHandle(const std::optional<SharedObject::Handle>& handle, Raw* raw) {
  static_assert(sizeof(Raw) == sizeof(SharedObject::Handle));
  if (!handle) return end(cudaErrorInvalidResourceHandle);
  std::memcpy(raw, &*handle, sizeof(*raw));
  return cudaSuccess;
}

template <class Raw>
SharedObject::Handle handleOf(const Raw& raw) {
  SharedObject::Handle handle;
  std::memcpy(static_cast<void*>(&handle), &raw, sizeof(handle));
  return handle;
}

}  // namespace
}  // namespace latentd::testing

using latentd::testing::EmulatedEvent;
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
  const latentd::MutexLock lock(emulated::memory().mutex);
  *total_bytes = emulated::kDeviceBytes;
  *free_bytes = emulated::kDeviceBytes - emulated::memory().bytes;
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  EmulatedStream::synchronizeAll();
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
  {
    const latentd::MutexLock lock(emulated::memory().mutex);
    if (bytes > emulated::kDeviceBytes - emulated::memory().bytes) return emulated::end(cudaErrorMemoryAllocation);
    emulated::memory().bytes += bytes;
  }
  const cudaError_t given = emulated::give(SharedObject::create(bytes), address, cudaErrorMemoryAllocation);
  if (given != cudaSuccess) {
    const latentd::MutexLock lock(emulated::memory().mutex);
    emulated::memory().bytes -= bytes;
  }
  return given;
}
cudaError_t cudaFree(void* address) {
  EmulatedStream::synchronizeAll();
  const latentd::MutexLock lock(emulated::memory().mutex);
  const auto found = emulated::memory().objects.find(address);
  if (found == emulated::memory().objects.end()) return emulated::end(cudaErrorInvalidValue);
  emulated::memory().bytes -= found->second->bytes();
  emulated::memory().objects.erase(found);
  return cudaSuccess;
}
cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* raw, void* address) {
  const latentd::MutexLock lock(emulated::memory().mutex);
  const auto found = emulated::memory().objects.find(address);
  if (found == emulated::memory().objects.end()) return emulated::end(cudaErrorInvalidValue);
  return emulated::exportHandle(found->second->handle(), raw);
}
cudaError_t cudaIpcOpenMemHandle(void** address, cudaIpcMemHandle_t raw, unsigned) {
  return emulated::give(SharedObject::import(emulated::handleOf(raw)), address, cudaErrorInvalidResourceHandle);
}
// At once: what still reads it is a fault.
cudaError_t cudaIpcCloseMemHandle(void* address) {
  const latentd::MutexLock lock(emulated::memory().mutex);
  return emulated::end(emulated::memory().objects.erase(address) == 1 ? cudaSuccess : cudaErrorInvalidValue);
}
cudaError_t cudaHostRegister(void* address, size_t bytes, unsigned) {
  const latentd::MutexLock lock(emulated::memory().mutex);
  emulated::memory().pinned[address] = bytes;
  return cudaSuccess;
}
cudaError_t cudaHostUnregister(void* address) {
  const latentd::MutexLock lock(emulated::memory().mutex);
  return emulated::end(emulated::memory().pinned.erase(address) == 1 ? cudaSuccess : cudaErrorHostMemoryNotRegistered);
}
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
  return emulated::submitCopy({target, target_pitch, source, source_pitch, width, height}, emulated::stream(stream));
}
cudaError_t cudaMemsetAsync(void* target, int value, size_t bytes, cudaStream_t stream) {
  emulated::stream(stream).submit([=] { std::memset(target, value, bytes); });
  return cudaSuccess;
}

// ---- streams ----------------------------------------------------------------------------------------------------
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* raw, unsigned, int) {
  *raw = reinterpret_cast<cudaStream_t>(new std::shared_ptr<EmulatedStream>(EmulatedStream::start()));
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
  return emulated::give(EmulatedEvent::create((flags & cudaEventInterprocess) != 0), raw, cudaErrorMemoryAllocation);
}
cudaError_t cudaEventDestroy(cudaEvent_t raw) {
  delete &emulated::event(raw);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t raw, cudaStream_t stream) {
  const std::shared_ptr<EmulatedEvent> event = emulated::event(raw);
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
  return emulated::exportHandle(emulated::event(event)->handle(), raw);
}
cudaError_t cudaIpcOpenEventHandle(cudaEvent_t* raw, cudaIpcEventHandle_t handle) {
  return emulated::give(EmulatedEvent::import(emulated::handleOf(handle)), raw, cudaErrorInvalidResourceHandle);
}

}  // extern "C"
