#include "runtime/worker/heartbeat.h"

#include <utility>

#include "runtime/worker/device_memory.h"
#include "runtime/worker/process_memory.h"

namespace latentd::worker {
namespace {

void addMemory(const std::string& device, const char* kind, uint64_t bytes, internal::v1::Heartbeat& heartbeat) {
  internal::v1::DeviceMemory& memory = *heartbeat.add_device_memory();
  memory.set_device(device);
  memory.set_kind(kind);
  memory.set_bytes(bytes);
}

}  // namespace

Heartbeat::Heartbeat(EventLoop& loop, Clock::Duration interval, std::string device, Edges& edges,
                     StageExecutor& executor, EventSink& events)
    : loop_(loop),
      interval_(interval),
      device_(std::move(device)),
      edges_(edges),
      executor_(executor),
      events_(events) {
  if (device_ != "cpu") device_memory_.emplace([name = device_] { return torchMemory(name); });
  loop_.runAndWait([this] { beat(); });
}

Heartbeat::~Heartbeat() {
  loop_.runAndWait([this] { loop_.cancelTimer(timer_); });
}

void Heartbeat::beat() {
  if (!executor_.stalled()) edges_.noteProgress();
  executor_.endStopped();
  internal::v1::WorkerEvent event;
  internal::v1::Heartbeat& heartbeat = *event.mutable_heartbeat();
  heartbeat.set_resident_bytes(residentBytes());
  if (!device_memory_) {
    addMemory(device_, "resident", heartbeat.resident_bytes(), heartbeat);
  } else {
    const TorchMemory memory = device_memory_->latest();
    addMemory(device_, "allocated", memory.allocated_bytes, heartbeat);
    addMemory(device_, "reserved", memory.reserved_bytes, heartbeat);
  }
  addMemory(device_, "pools", edges_.poolBytes(), heartbeat);
  edges_.fillFigures(*event.mutable_edges());
  events_.post(std::move(event));
  timer_ = loop_.addTimer(loop_.clock().now() + interval_, [this] { beat(); });
}

}  // namespace latentd::worker
