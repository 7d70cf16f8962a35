#include "runtime/cuda/event.h"

#include <cstring>

#include "runtime/cuda/cuda_status.h"

namespace latentd::cuda {

StatusOr<Event> Event::createWith(DeviceIndex device, unsigned flags) {
  const DeviceGuard guard(device);
  cudaEvent_t event = nullptr;
  LATENTD_CUDA_RETURN_IF_ERROR(cudaEventCreateWithFlags(&event, flags), "creating an event");
  return Event(event, device);
}

StatusOr<Event> Event::create(DeviceIndex device) { return createWith(device, cudaEventDisableTiming); }

StatusOr<Event> Event::createInterprocess(DeviceIndex device) {
  return createWith(device, cudaEventDisableTiming | cudaEventInterprocess);
}

StatusOr<Event> Event::import(DeviceIndex device, const EventHandle& handle) {
  const DeviceGuard guard(device);
  cudaIpcEventHandle_t raw;
  std::memcpy(&raw, handle.data(), sizeof(raw));
  cudaEvent_t event = nullptr;
  LATENTD_CUDA_RETURN_IF_ERROR(cudaIpcOpenEventHandle(&event, raw), "importing an event");
  return Event(event, device);
}

Event::~Event() {
  if (event_ == nullptr) return;
  const DeviceGuard guard(device_);
  (void)cudaEventDestroy(event_);
}

StatusOr<EventHandle> Event::exportHandle() const {
  const DeviceGuard guard(device_);
  cudaIpcEventHandle_t raw;
  LATENTD_CUDA_RETURN_IF_ERROR(cudaIpcGetEventHandle(&raw, event_), "exporting an event");
  EventHandle handle;
  std::memcpy(handle.data(), &raw, sizeof(raw));
  return handle;
}

Status Event::record(StreamView stream) {
  const DeviceGuard guard(stream.device());
  LATENTD_CUDA_RETURN_IF_ERROR(cudaEventRecord(event_, stream.get()), "recording an event");
  return absl::OkStatus();
}

Status Event::makeWait(StreamView stream) const {
  const DeviceGuard guard(stream.device());
  LATENTD_CUDA_RETURN_IF_ERROR(cudaStreamWaitEvent(stream.get(), event_, 0), "making a stream wait for an event");
  return absl::OkStatus();
}

StatusOr<bool> Event::complete() const {
  const cudaError_t error = cudaEventQuery(event_);
  if (error == cudaSuccess) return true;
  if (error == cudaErrorNotReady) {
    (void)cudaGetLastError();
    return false;
  }
  return cudaStatus(error, "asking whether an event is complete");
}

Status Event::synchronize() const {
  LATENTD_CUDA_RETURN_IF_ERROR(cudaEventSynchronize(event_), "waiting for an event");
  return absl::OkStatus();
}

}  // namespace latentd::cuda
