#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/cuda/event.h"

// The events of a pool, one for each slot, and how they travel: raw handles, one after the other.
namespace latentd::channel {

template <class Raw>
void appendRaw(std::string& bytes, const Raw& raw) {
  bytes.append(reinterpret_cast<const char*>(raw.data()), raw.size());
}

// `offset` is known to lie in bounds.
template <class Raw>
Raw rawAt(const std::string& bytes, size_t offset) {
  Raw raw;
  std::memcpy(raw.data(), bytes.data() + offset, raw.size());
  return raw;
}

StatusOr<std::vector<cuda::Event>> createEvents(cuda::DeviceIndex device, uint32_t count);
StatusOr<std::string> exportEvents(const std::vector<cuda::Event>& events);
// INVALID_ARGUMENT unless `bytes` holds exactly `count` handles after `offset`.
StatusOr<std::vector<cuda::Event>> importEvents(cuda::DeviceIndex device, const std::string& bytes, size_t offset,
                                                uint32_t count);
// The last record of each is complete.
StatusOr<bool> allComplete(const std::vector<cuda::Event>& events);

}  // namespace latentd::channel
