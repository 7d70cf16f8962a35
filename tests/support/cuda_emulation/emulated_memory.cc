#include "tests/support/cuda_emulation/emulated_memory.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <iterator>
#include <utility>

namespace latentd::testing {
namespace {

// Smaller allocations share a block, and a handle is one of the whole block.
constexpr uint64_t kBlockBytes = 2 << 20;
// Fresh memory is anything. Beyond this much of an allocation it is zero: large ones may be sparse.
constexpr uint64_t kPoisonedBytes = 64 << 20;
constexpr int kPoison = 0xa5;

// The last entry that begins at or before the address.
template <class Ranges>
auto lastFrom(const Ranges& ranges, const void* address) {
  const auto after = ranges.upper_bound(address);
  return after == ranges.begin() ? ranges.end() : std::prev(after);
}

bool holds(const void* begin, uint64_t size, const void* address) {
  return address < static_cast<const char*>(begin) + size;
}

}  // namespace

// Never destroyed: threads of streams may outlive main().
EmulatedMemory& EmulatedMemory::instance() {
  static auto* const memory = new EmulatedMemory;
  return *memory;
}

cudaError_t EmulatedMemory::allocate(uint64_t bytes, void** address) {
  const MutexLock lock(mutex_);
  if (bytes > kDeviceBytes - allocated_bytes_) return cudaErrorMemoryAllocation;
  std::unique_ptr<SharedObject> object = SharedObject::create(bytes);
  if (object == nullptr) return cudaErrorMemoryAllocation;
  *address = object->data();
  std::memset(*address, kPoison, std::min(bytes, kPoisonedBytes));
  allocated_bytes_ += bytes;
  allocated_[*address] = std::move(object);
  return cudaSuccess;
}

cudaError_t EmulatedMemory::free(void* address) {
  const MutexLock lock(mutex_);
  const auto found = allocated_.find(address);
  if (found == allocated_.end()) return cudaErrorInvalidValue;
  allocated_bytes_ -= found->second->bytes();
  allocated_.erase(found);
  return cudaSuccess;
}

cudaError_t EmulatedMemory::exportHandle(const void* address, cudaIpcMemHandle_t* handle) {
  const MutexLock lock(mutex_);
  const auto found = allocated_.find(address);
  if (found == allocated_.end() || found->second->bytes() % kBlockBytes != 0) return cudaErrorInvalidValue;
  *handle = std::bit_cast<cudaIpcMemHandle_t>(found->second->handle().value());
  return cudaSuccess;
}

cudaError_t EmulatedMemory::import(const cudaIpcMemHandle_t& handle, void** address) {
  const auto wanted = std::bit_cast<SharedObject::Handle>(handle);
  const MutexLock lock(mutex_);
  for (const auto& [begin, object] : imported_) {
    if (object->id() == wanted.id) return cudaErrorAlreadyMapped;
  }
  std::unique_ptr<SharedObject> object = SharedObject::import(wanted);
  if (object == nullptr) return cudaErrorInvalidResourceHandle;
  *address = object->data();
  imported_[*address] = std::move(object);
  return cudaSuccess;
}

cudaError_t EmulatedMemory::close(void* address) {
  const MutexLock lock(mutex_);
  return imported_.erase(address) == 1 ? cudaSuccess : cudaErrorInvalidValue;
}

void EmulatedMemory::pin(const void* address, uint64_t bytes) {
  const MutexLock lock(mutex_);
  pinned_[address] = bytes;
}

cudaError_t EmulatedMemory::unpin(const void* address) {
  const MutexLock lock(mutex_);
  return pinned_.erase(address) == 1 ? cudaSuccess : cudaErrorHostMemoryNotRegistered;
}

const SharedObject* EmulatedMemory::find(const void* address) const {
  for (const Objects* objects : {&allocated_, &imported_}) {
    const auto last = lastFrom(*objects, address);
    if (last != objects->end() && holds(last->first, last->second->bytes(), address)) return last->second.get();
  }
  return nullptr;
}

bool EmulatedMemory::isPageable(const void* address) {
  const MutexLock lock(mutex_);
  if (find(address) != nullptr) return false;
  const auto last = lastFrom(pinned_, address);
  return last == pinned_.end() || !holds(last->first, last->second, address);
}

bool EmulatedMemory::isInBounds(const void* address, uint64_t bytes) {
  const MutexLock lock(mutex_);
  const SharedObject* const object = find(address);
  if (object == nullptr) return true;
  const auto offset = static_cast<const char*>(address) - static_cast<const char*>(object->data());
  return bytes <= object->bytes() - static_cast<uint64_t>(offset);
}

uint64_t EmulatedMemory::freeBytes() {
  const MutexLock lock(mutex_);
  return kDeviceBytes - allocated_bytes_;
}

}  // namespace latentd::testing
