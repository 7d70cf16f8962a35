#include "tests/support/cuda_emulation/emulated_event.h"

#include <linux/futex.h>
#include <poll.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <climits>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <utility>

namespace latentd::testing {

EmulatedEvent::EmulatedEvent(int device, std::unique_ptr<SharedObject> shared)
    : device_(device), shared_(std::move(shared)), words_(shared_ ? static_cast<Words*>(shared_->data()) : &own_) {}

std::shared_ptr<EmulatedEvent> EmulatedEvent::create(int device, bool interprocess) {
  if (!interprocess) return std::shared_ptr<EmulatedEvent>(new EmulatedEvent(device, nullptr));
  std::unique_ptr<SharedObject> shared = SharedObject::create(sizeof(Words));
  if (shared == nullptr) return nullptr;
  new (shared->data()) Words;
  return std::shared_ptr<EmulatedEvent>(new EmulatedEvent(device, std::move(shared)));
}

std::shared_ptr<EmulatedEvent> EmulatedEvent::import(int device, const SharedObject::Handle& handle) {
  if (handle.bytes != sizeof(Words)) return nullptr;
  std::unique_ptr<SharedObject> shared = SharedObject::import(handle);
  return shared == nullptr ? nullptr : std::shared_ptr<EmulatedEvent>(new EmulatedEvent(device, std::move(shared)));
}

uint64_t EmulatedEvent::submit() {
  words_->recorder.store(::getpid());
  return words_->submitted.fetch_add(1, std::memory_order_acq_rel) + 1;
}

void EmulatedEvent::reach(uint64_t record) {
  uint64_t before = words_->reached.load(std::memory_order_relaxed);
  while (before < record && !words_->reached.compare_exchange_weak(before, record, std::memory_order_release)) {
  }
  words_->changes.fetch_add(1, std::memory_order_release);
  ::syscall(SYS_futex, &words_->changes, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

bool EmulatedEvent::isReached(uint64_t record) const {
  return words_->reached.load(std::memory_order_acquire) >= record || recorderIsDead();
}

void EmulatedEvent::waitReached(uint64_t record) const {
  for (;;) {
    const uint32_t changes = words_->changes.load(std::memory_order_acquire);
    if (submitted() < record) {
      std::fputs("a stream waits for an event that its exporter has destroyed\n", stderr);
      std::abort();
    }
    if (isReached(record)) return;
    // A death wakes nobody.
    const timespec look{0, 2'000'000};
    ::syscall(SYS_futex, &words_->changes, FUTEX_WAIT, changes, &look, nullptr, 0);
  }
}

bool EmulatedEvent::recorderIsDead() const {
  const pid_t recorder = words_->recorder.load();
  if (recorder == ::getpid() || recorder == 0) return false;
  const int fd = static_cast<int>(::syscall(SYS_pidfd_open, recorder, 0));
  if (fd < 0) return true;
  pollfd ended{fd, POLLIN, 0};
  const bool dead = ::poll(&ended, 1, 0) == 1;
  ::close(fd);
  return dead;
}

}  // namespace latentd::testing
