#include "mesh/round_flags.h"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
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
  std::atomic<uint32_t> events = 0;  // changes after each change of a flag: what the owner sleeps on
  std::atomic<uint32_t> ended = 0;   // the owner itself
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

void RoundFlags::requireAlive(Mark mark, uint32_t round) const {
  if (page(rank_).ended.load(std::memory_order_acquire) != 0) throw std::runtime_error("this rank has ended");
  for (size_t peer = 0; peer < members_.size(); ++peer) {
    if (peer == rank_) continue;
    // In this order: what a process wrote before it died is there once it has.
    const bool died = hasDied(processes_[peer]);
    const Presence presence = from(peer).presence.load(std::memory_order_acquire);
    const std::string name = "rank " + std::to_string(members_[peer].value);
    if (presence == Presence::kEnded) throw std::runtime_error(name + " has ended");
    if (presence == Presence::kHere && died) throw std::runtime_error(name + " has died");
    if (presence == Presence::kLeft && behind(peer, mark, round)) throw std::runtime_error(name + " has left");
  }
}

void RoundFlags::await(Mark mark, uint32_t round) {
  std::atomic<uint32_t>& events = page(rank_).events;
  while (true) {
    // Before the flags are looked at: a change after the look is a change of this.
    const uint32_t seen = events.load(std::memory_order_acquire);
    if (!anyBehind(mark, round)) return;
    requireAlive(mark, round);
    futexWait(events, seen, std::chrono::steady_clock::now() + kLook);
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

}  // namespace latentd::mesh
