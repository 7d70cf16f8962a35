#include "channel/cuda_events.h"

#include <utility>

namespace latentd::channel {

using cuda::DeviceIndex;
using cuda::Event;
using cuda::EventHandle;

StatusOr<std::vector<Event>> createEvents(DeviceIndex device, uint32_t count) {
  std::vector<Event> events;
  for (uint32_t i = 0; i < count; ++i) {
    LATENTD_ASSIGN_OR_RETURN(Event event, Event::createInterprocess(device));
    events.push_back(std::move(event));
  }
  return events;
}

StatusOr<std::string> exportEvents(const std::vector<Event>& events) {
  std::string bytes;
  for (const Event& event : events) {
    LATENTD_ASSIGN_OR_RETURN(const EventHandle handle, event.exportHandle());
    appendRaw(bytes, handle);
  }
  return bytes;
}

StatusOr<std::vector<Event>> importEvents(DeviceIndex device, const std::string& bytes, size_t offset, uint32_t count) {
  if (bytes.size() != offset + count * sizeof(EventHandle)) {
    return makeStatus(absl::StatusCode::kInvalidArgument, "a peer sent " + std::to_string(bytes.size()) +
                                                              " bytes of handles, not " +
                                                              std::to_string(offset + count * sizeof(EventHandle)));
  }
  std::vector<Event> events;
  for (uint32_t i = 0; i < count; ++i) {
    const auto handle = rawAt<EventHandle>(bytes, offset + i * sizeof(EventHandle));
    LATENTD_ASSIGN_OR_RETURN(Event event, Event::import(device, handle));
    events.push_back(std::move(event));
  }
  return events;
}

StatusOr<bool> allComplete(const std::vector<Event>& events) {
  for (const Event& event : events) {
    LATENTD_ASSIGN_OR_RETURN(const bool complete, event.complete());
    if (!complete) return false;
  }
  return true;
}

}  // namespace latentd::channel
