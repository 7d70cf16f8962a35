#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "tests/support/cuda_emulation/shared_object.h"

namespace latentd::testing {

// A CUDA event without a device: how often it was recorded, and up to which record its stream has come. A process that
// dies completes what it recorded, as the driver does. Who waits for one that its exporter has destroyed ends with a
// message, for CUDA promises nothing there.
// Owners: the handle that the runtime's caller has, and work in streams. Thread: any.
class EmulatedEvent {
 public:
  // Null for want of memory.
  static std::shared_ptr<EmulatedEvent> create(int device, bool interprocess);
  static std::shared_ptr<EmulatedEvent> import(int device, const SharedObject::Handle& handle);
  int device() const { return device_; }

  // A record is submitted, and then reached by its stream.
  uint64_t submit();
  void reach(uint64_t record);
  uint64_t submitted() const { return words_->submitted.load(std::memory_order_acquire); }
  bool isReached(uint64_t record) const;
  void waitReached(uint64_t record) const;

  std::optional<SharedObject::Handle> handle() const { return shared_ ? shared_->handle() : std::nullopt; }

 private:
  struct Words {
    std::atomic<uint64_t> submitted{0};
    std::atomic<uint64_t> reached{0};
    std::atomic<uint32_t> changes{0};  // what waiting threads sleep on
    std::atomic<int32_t> recorder{0};  // process
  };
  static_assert(std::atomic<uint64_t>::is_always_lock_free);

  EmulatedEvent(int device, std::unique_ptr<SharedObject> shared);

  bool recorderIsDead() const;

  const int device_;
  const std::unique_ptr<SharedObject> shared_;  // null: of this process alone
  Words own_;
  Words* const words_;
};

}  // namespace latentd::testing
