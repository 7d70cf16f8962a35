#include "runtime/base/flight_recorder.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstring>
#include <new>
#include <optional>
#include <string_view>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/nanoseconds.h"

namespace latentd {
namespace {

constexpr uint64_t kMagic = 0x7264636572746c66;  // "fltrecdr"
constexpr size_t kNameWords = Operation::kNameBytes / sizeof(uint64_t);
static_assert(kNameWords * sizeof(uint64_t) == Operation::kNameBytes);

using NameWords = std::array<uint64_t, kNameWords>;

// One operation as the words of an entry.
struct Words {
  NameWords kind{};
  NameWords group{};
  uint64_t members = 0;
  uint64_t sequence = 0;
  uint64_t run = 0;
  uint64_t type = 0;  // dtype << 8 | dimensions
  std::array<uint64_t, Operation::kDimsMax> shape{};
  uint64_t bytes_sent = 0;
  uint64_t submitted_ns = 0;
  uint64_t done_ns = 0;
};
constexpr size_t kWords = sizeof(Words) / sizeof(uint64_t);
constexpr size_t kDoneWord = offsetof(Words, done_ns) / sizeof(uint64_t);

// A place of the ring. Its version is 2n - 1 while the words of operation n are being written, and 2n afterwards; a
// reader takes the words if the version is 2n before and after. It then has no word of another operation: each is
// stored with release and loaded with acquire, so whoever met a word of a later one meets its odd version, at least, at
// the second look.
struct Entry {
  std::atomic<uint64_t> version;
  std::atomic<uint64_t> words[kWords];
};

NameWords packName(std::string_view name) {
  NameWords words{};
  std::memcpy(words.data(), name.data(), std::min(name.size(), Operation::kNameBytes - 1));
  return words;
}

// A peer may have written anything: what no name has is shown as '?'.
std::string unpackName(const NameWords& words) {
  char text[Operation::kNameBytes];
  std::memcpy(text, words.data(), sizeof(text));
  std::string name(text, ::strnlen(text, sizeof(text) - 1));
  for (char& c : name)
    if (c < ' ' || c > '~') c = '?';
  return name;
}

Words pack(const Operation& operation) {
  Words words;
  words.kind = packName(operation.kind);
  words.group = packName(operation.group);
  words.members = operation.members;
  words.sequence = operation.sequence;
  words.run = operation.run;
  const size_t dims = std::min(operation.shape.size(), Operation::kDimsMax);
  words.type = static_cast<uint64_t>(operation.dtype) << 8 | dims;
  for (size_t i = 0; i < dims; ++i)
    words.shape[i] = static_cast<uint64_t>(operation.shape[i]);
  words.bytes_sent = operation.bytes_sent;
  words.submitted_ns = static_cast<uint64_t>(operation.submitted_ns);
  words.done_ns = static_cast<uint64_t>(operation.done_ns);
  return words;
}

Operation unpack(const Words& words) {
  Operation operation;
  operation.kind = unpackName(words.kind);
  operation.group = unpackName(words.group);
  operation.members = words.members;
  operation.sequence = words.sequence;
  operation.run = words.run;
  const uint64_t dtype = words.type >> 8;
  operation.dtype = dtype <= static_cast<uint64_t>(DType::kBool) ? static_cast<DType>(dtype) : DType::kInvalid;
  const size_t dims = std::min<size_t>(words.type & 0xff, Operation::kDimsMax);
  for (size_t i = 0; i < dims; ++i)
    operation.shape.push_back(static_cast<int64_t>(words.shape[i]));
  operation.bytes_sent = words.bytes_sent;
  operation.submitted_ns = static_cast<int64_t>(words.submitted_ns);
  operation.done_ns = static_cast<int64_t>(words.done_ns);
  return operation;
}

std::optional<Words> read(const Entry& entry, uint64_t number) {
  if (entry.version.load(std::memory_order_acquire) != 2 * number) return std::nullopt;
  std::array<uint64_t, kWords> raw;
  for (size_t i = 0; i < kWords; ++i)
    raw[i] = entry.words[i].load(std::memory_order_acquire);
  if (entry.version.load(std::memory_order_relaxed) != 2 * number) return std::nullopt;
  return std::bit_cast<Words>(raw);
}

void write(Entry& entry, uint64_t number, const Words& words) {
  const auto raw = std::bit_cast<std::array<uint64_t, kWords>>(words);
  entry.version.store(2 * number - 1, std::memory_order_relaxed);
  for (size_t i = 0; i < kWords; ++i)
    entry.words[i].store(raw[i], std::memory_order_release);
  entry.version.store(2 * number, std::memory_order_release);
}

bool agree(const Words& a, const Words& b, bool same_shape) {
  if (a.run != b.run || a.kind != b.kind || a.type >> 8 != b.type >> 8) return false;
  return !same_shape || (a.type == b.type && a.shape == b.shape);
}

}  // namespace

std::string tensorText(const Operation& operation) {
  std::string shape;
  for (const int64_t size : operation.shape)
    shape += (shape.empty() ? "" : ", ") + std::to_string(size);
  return std::string(toString(operation.dtype)) + " [" + shape + "]";
}

std::string operationText(const Operation& operation) {
  const std::string run = operation.run == 0 ? "" : " in run " + std::to_string(operation.run);
  return operation.kind + " of " + tensorText(operation) + run;
}

Status operationDiffers(const Operation& operation, Rank one, const std::string& does, Rank other,
                        const std::string& other_does) {
  return absl::InternalError("operation " + std::to_string(operation.sequence) + " of process group " +
                             operation.group + " differs between its ranks: rank " + std::to_string(one.value) + " " +
                             does + ", rank " + std::to_string(other.value) + " " + other_does);
}

struct FlightRecorder::Ring {
  std::atomic<uint64_t> begun;  // the number of the newest operation; numbers count from 1
  std::atomic<uint64_t> bytes_sent;
  Entry entries[kOperations];

  Entry& entry(uint64_t number) { return entries[number % kOperations]; }

  // The operation of that group and sequence, if it is still, or already, here.
  std::optional<Words> find(const NameWords& group, uint64_t sequence) {
    // Ordered with the peer's store of its own `begun`: see begin().
    const uint64_t newest = begun.load(std::memory_order_seq_cst);
    const uint64_t kept = std::min<uint64_t>(newest, kOperations);
    for (uint64_t number = newest; number > newest - kept; --number) {
      const std::optional<Words> words = read(entry(number), number);
      if (!words || words->group != group) continue;
      if (words->sequence == sequence) return words;
      if (words->sequence < sequence) return std::nullopt;  // sequences of a group only rise
    }
    return std::nullopt;
  }
};

struct FlightRecorder::Memory {
  uint64_t magic;
  uint64_t ranks;

  Ring* rings() { return reinterpret_cast<Ring*>(this + 1); }
  static size_t bytes(uint64_t ranks) { return sizeof(Memory) + ranks * sizeof(Ring); }
};

FlightRecorder::FlightRecorder(ShmRegion region, Rank rank, uint32_t ranks)
    : region_(std::move(region)), rank_(rank), ranks_(ranks) {}

FlightRecorder::Ring& FlightRecorder::ring(Rank rank) const {
  LATENTD_CHECK(rank.value < ranks_, "the recorder has no ring for this rank");
  return reinterpret_cast<Memory*>(region_.data())->rings()[rank.value];
}

StatusOr<ShmRegion> FlightRecorder::createRegion(uint32_t ranks) {
  if (ranks == 0 || ranks > kRanksMax) {
    return absl::InvalidArgumentError("flight recorder for " + std::to_string(ranks) + " ranks: 1 to " +
                                      std::to_string(kRanksMax) + " are possible");
  }
  LATENTD_ASSIGN_OR_RETURN(ShmRegion region, ShmRegion::create("latentd-flight-recorder", Memory::bytes(ranks)));
  auto* memory = reinterpret_cast<Memory*>(region.data());
  memory->magic = kMagic;
  memory->ranks = ranks;
  for (uint32_t rank = 0; rank < ranks; ++rank)
    new (&memory->rings()[rank]) Ring{};
  return region;
}

StatusOr<FlightRecorder> FlightRecorder::attach(ShmRegion region, Rank rank) {
  const auto* memory = reinterpret_cast<const Memory*>(region.data());
  const bool ours = region.bytes() >= sizeof(Memory) && memory->magic == kMagic;
  const uint64_t stated = ours ? memory->ranks : 0;
  if (stated == 0 || stated > kRanksMax || region.bytes() < Memory::bytes(stated)) {
    return absl::InvalidArgumentError("shared memory is no flight recorder of this version");
  }
  const auto ranks = static_cast<uint32_t>(stated);
  if (rank.value >= ranks) {
    return absl::InvalidArgumentError("flight recorder is for ranks 0 to " + std::to_string(ranks - 1) + ", not rank " +
                                      std::to_string(rank.value));
  }
  return FlightRecorder(std::move(region), rank, ranks);
}

uint64_t FlightRecorder::begin(const Operation& operation) {
  Ring& mine = ring(rank_);
  const uint64_t number = mine.begun.load(std::memory_order_relaxed) + 1;
  write(mine.entry(number), number, pack(operation));
  mine.bytes_sent.fetch_add(operation.bytes_sent, std::memory_order_relaxed);
  // Sequentially consistent, as the load in find(): two ranks that begin at once, each before it looks at the other,
  // cannot both miss the other.
  mine.begun.store(number, std::memory_order_seq_cst);
  return number;
}

void FlightRecorder::end(uint64_t number) {
  Entry& entry = ring(rank_).entry(number);
  if (entry.version.load(std::memory_order_relaxed) != 2 * number) return;
  entry.words[kDoneWord].store(static_cast<uint64_t>(toNanoseconds(std::chrono::steady_clock::now())),
                               std::memory_order_release);
}

Status FlightRecorder::disagreement(const Operation& mine, const std::vector<Rank>& peers, bool same_shape) const {
  const Words words = pack(mine);
  for (const Rank peer : peers) {
    if (peer == rank_) continue;
    const std::optional<Words> theirs = ring(peer).find(words.group, mine.sequence);
    if (!theirs || agree(words, *theirs, same_shape)) continue;
    return operationDiffers(mine, rank_, operationText(unpack(words)), peer, operationText(unpack(*theirs)));
  }
  return absl::OkStatus();
}

std::vector<Operation> FlightRecorder::operations(Rank rank) const {
  Ring& theirs = ring(rank);
  const uint64_t newest = theirs.begun.load(std::memory_order_acquire);
  std::vector<Operation> operations;
  for (uint64_t left = std::min<uint64_t>(newest, kOperations); left > 0; --left) {
    const uint64_t number = newest - left + 1;
    if (const std::optional<Words> words = read(theirs.entry(number), number)) operations.push_back(unpack(*words));
  }
  return operations;
}

FlightRecorder::Totals FlightRecorder::totals(Rank rank) const {
  const Ring& theirs = ring(rank);
  return {theirs.begun.load(std::memory_order_acquire), theirs.bytes_sent.load(std::memory_order_relaxed)};
}

}  // namespace latentd
