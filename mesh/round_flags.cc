#include "mesh/round_flags.h"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>

#include "runtime/base/futex.h"

namespace latentd::mesh {
namespace {

// How soon a death is noticed: the kernel wakes nobody who sleeps on a word that the dead would have written.
constexpr std::chrono::milliseconds kLook{20};
constexpr size_t kCacheLine = 64;

bool hasDied(const UniqueFd& process) {
  pollfd watched{process.get(), POLLIN, 0};
  return ::poll(&watched, 1, 0) > 0;
}

}  // namespace

// What one peer says. Its own line of the cache: others write theirs at the same time.
struct alignas(kCacheLine) RoundFlags::Flags {
  std::atomic<uint32_t> free = 0;
  std::atomic<uint32_t> written = 0;
  std::atomic<Presence> presence = Presence::kHere;

  std::atomic<uint32_t>& of(Mark mark) { return mark == Mark::kFree ? free : written; }
  const std::atomic<uint32_t>& of(Mark mark) const { return mark == Mark::kFree ? free : written; }
};

struct alignas(kCacheLine) RoundFlags::Page {
  std::atomic<uint32_t> events = 0;   // changes after each change of a flag: what the owner sleeps on
  std::atomic<uint32_t> ended = 0;    // the owner itself
  std::atomic<uint32_t> reached = 0;  // by the owner's device
  pid_t owner = 0;

  Flags* flags() { return reinterpret_cast<Flags*>(this + 1); }

  void changed() {
    events.fetch_add(1, std::memory_order_acq_rel);
    futexWakeAll(events);
  }
};

uint64_t RoundFlags::pageBytes(size_t ranks) { return sizeof(Page) + ranks * sizeof(Flags); }

void RoundFlags::initialize(const ShmRegion& page) {
  auto* const made = new (page.data()) Page;
  made->owner = ::getpid();
  const size_t ranks = (page.bytes() - sizeof(Page)) / sizeof(Flags);
  for (size_t peer = 0; peer < ranks; ++peer)
    new (made->flags() + peer) Flags;
}

StatusOr<RoundFlags> RoundFlags::make(size_t rank, std::vector<Rank> members, std::vector<ShmRegion> pages) {
  std::vector<UniqueFd> processes(members.size());
  for (size_t peer = 0; peer < members.size(); ++peer) {
    if (peer == rank) continue;
    const pid_t owner = reinterpret_cast<const Page*>(pages[peer].data())->owner;
    processes[peer].reset(static_cast<int>(::syscall(SYS_pidfd_open, owner, 0)));
    if (processes[peer].valid()) continue;
    const std::string what = "the process of rank " + std::to_string(members[peer].value);
    return errno == ESRCH ? absl::UnavailableError(what + " is gone") : errnoStatus(errno, what + ": pidfd_open");
  }
  return RoundFlags(rank, std::move(members), std::move(pages), std::move(processes));
}

RoundFlags::Page& RoundFlags::page(size_t rank) const { return *reinterpret_cast<Page*>(pages_[rank].data()); }

const RoundFlags::Flags& RoundFlags::from(size_t peer) const { return page(rank_).flags()[peer]; }

void RoundFlags::announce(Mark mark, uint32_t round) {
  for (size_t peer = 0; peer < members_.size(); ++peer) {
    if (peer == rank_) continue;
    page(peer).flags()[rank_].of(mark).store(round, std::memory_order_release);
    page(peer).changed();
  }
}

bool RoundFlags::behind(size_t peer, Mark mark, uint32_t round) const {
  if (peer == rank_) return false;
  return static_cast<int32_t>(from(peer).of(mark).load(std::memory_order_acquire) - round) < 0;
}

bool RoundFlags::anyBehind(Mark mark, uint32_t round) const {
  for (size_t peer = 0; peer < members_.size(); ++peer)
    if (behind(peer, mark, round)) return true;
  return false;
}

Status RoundFlags::trouble(Mark mark, uint32_t round) const {
  if (page(rank_).ended.load(std::memory_order_acquire) != 0) return absl::UnavailableError("this rank has ended");
  for (size_t peer = 0; peer < members_.size(); ++peer) {
    if (peer == rank_) continue;
    // In this order: what a process wrote before it died is there once it has.
    const bool died = hasDied(processes_[peer]);
    const Presence presence = from(peer).presence.load(std::memory_order_acquire);
    const std::string name = "rank " + std::to_string(members_[peer].value);
    if (presence == Presence::kEnded) return absl::UnavailableError(name + " has ended");
    if (presence == Presence::kHere && died) return absl::UnavailableError(name + " has died");
    if (presence == Presence::kLeft && behind(peer, mark, round)) return absl::UnavailableError(name + " has left");
  }
  return absl::OkStatus();
}

void RoundFlags::await(Mark mark, uint32_t round) {
  std::atomic<uint32_t>& events = page(rank_).events;
  while (true) {
    // Before the flags are looked at: a change after the look is a change of this.
    const uint32_t seen = events.load(std::memory_order_acquire);
    if (!anyBehind(mark, round)) return;
    if (const Status vain = trouble(mark, round); !vain.ok()) throw std::runtime_error(messageOf(vain));
    futexWait(events, seen, std::chrono::steady_clock::now() + kLook);
  }
}

size_t RoundFlags::offsetOf(size_t from, Mark mark) {
  static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t), "a device writes a flag as a word");
  return sizeof(Page) + from * sizeof(Flags) + (mark == Mark::kFree ? offsetof(Flags, free) : offsetof(Flags, written));
}

size_t RoundFlags::reachedOffset() { return offsetof(Page, reached); }

uint32_t RoundFlags::reached() const { return page(rank_).reached.load(std::memory_order_acquire); }

void RoundFlags::pass(uint32_t round) noexcept {
  for (size_t peer = 0; peer < members_.size(); ++peer) {
    Flags& flags = page(rank_).flags()[peer];
    flags.free.store(round, std::memory_order_release);
    flags.written.store(round, std::memory_order_release);
  }
}

void RoundFlags::tellPeers(Presence presence) noexcept {
  for (size_t peer = 0; peer < members_.size(); ++peer) {
    if (peer == rank_) continue;
    page(peer).flags()[rank_].presence.store(presence, std::memory_order_release);
    page(peer).changed();
  }
}

void RoundFlags::end() noexcept {
  page(rank_).ended.store(1, std::memory_order_release);
  page(rank_).changed();
  tellPeers(Presence::kEnded);
}

void RoundFlags::leave() noexcept {
  if (page(rank_).ended.load(std::memory_order_acquire) == 0) tellPeers(Presence::kLeft);
}

bool RoundFlags::anyHere() const {
  for (size_t peer = 0; peer < members_.size(); ++peer) {
    if (peer == rank_ || from(peer).presence.load(std::memory_order_acquire) != Presence::kHere) continue;
    if (!hasDied(processes_[peer])) return true;
  }
  return false;
}

void RoundFlags::awaitLeaving(std::chrono::steady_clock::time_point deadline) {
  std::atomic<uint32_t>& events = page(rank_).events;
  while (true) {
    const uint32_t seen = events.load(std::memory_order_acquire);
    const auto now = std::chrono::steady_clock::now();
    if (!anyHere() || now >= deadline) return;
    futexWait(events, seen, std::min(deadline, now + kLook));
  }
}

}  // namespace latentd::mesh
