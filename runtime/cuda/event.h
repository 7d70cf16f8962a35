#pragma once

#include <array>
#include <cstddef>
#include <utility>

#include <cuda_runtime_api.h>

#include "runtime/base/status.h"
#include "runtime/cuda/stream.h"

namespace latentd::cuda {

// What travels to the process that imports an event.
using EventHandle = std::array<std::byte, sizeof(cudaIpcEventHandle_t)>;

// Owns an event without timing. An interprocess event has one exporter and any number of importers: the exporter
// destroys it only after every importer has let go. Record and wait from one thread at a time.
class Event {
 public:
  // Of this process alone.
  static StatusOr<Event> create(DeviceIndex device);
  // To be exported: only such an event has a handle.
  static StatusOr<Event> createInterprocess(DeviceIndex device);
  // An event of another process. The exporter must still live; the same handle is imported once per process.
  static StatusOr<Event> import(DeviceIndex device, const EventHandle& handle);

  Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)), device_(other.device_) {}
  Event& operator=(Event&& other) noexcept {
    std::swap(event_, other.event_);
    std::swap(device_, other.device_);
    return *this;
  }
  ~Event();

  StatusOr<EventHandle> exportHandle() const;
  Status record(StreamView stream);
  // Later work of `stream` starts once the last record of this event is complete. The record must be known to have been
  // submitted: a wait on an event that was never recorded does nothing.
  Status makeWait(StreamView stream) const;
  // The last record is complete.
  StatusOr<bool> complete() const;
  // Blocks the host until the last record is complete.
  Status synchronize() const;

 private:
  Event(cudaEvent_t event, DeviceIndex device) : event_(event), device_(device) {}
  static StatusOr<Event> createWith(DeviceIndex device, unsigned flags);

  cudaEvent_t event_ = nullptr;
  DeviceIndex device_;
};

}  // namespace latentd::cuda
