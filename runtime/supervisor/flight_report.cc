#include "runtime/supervisor/flight_report.h"

#include <fmt/format.h>

#include <algorithm>

namespace latentd::supervisor {
namespace {

using Records = std::vector<std::vector<Operation>>;  // by rank

Records read(const FlightRecorder& recorder) {
  Records records;
  for (uint32_t rank = 0; rank < recorder.ranks(); ++rank)
    records.push_back(recorder.operations(Rank(rank)));
  return records;
}

double secondsBetween(int64_t from_ns, int64_t to_ns) { return static_cast<double>(to_ns - from_ns) * 1e-9; }

// That is under way for the longest time; null if none is.
const Operation* longestUnderWay(const std::vector<Operation>& operations) {
  const Operation* longest = nullptr;
  for (const Operation& each : operations) {
    if (each.done_ns == 0 && (longest == nullptr || each.submitted_ns < longest->submitted_ns)) longest = &each;
  }
  return longest;
}

const Operation* longestUnderWay(const Records& records) {
  const Operation* longest = nullptr;
  for (const std::vector<Operation>& operations : records) {
    const Operation* const own = longestUnderWay(operations);
    if (own != nullptr && (longest == nullptr || own->submitted_ns < longest->submitted_ns)) longest = own;
  }
  return longest;
}

// Where the ranks of one process group stand with one of its operations.
struct Standing {
  std::vector<uint32_t> waiting;   // it is under way
  std::vector<uint32_t> behind;    // they have begun an earlier one last
  std::vector<uint32_t> finished;  // it is done, or so old that it is no longer kept
  uint32_t last_rank = 0;          // of those that wait, who began it last
  int64_t last_begun_ns = 0;
};

Standing standingOf(const Records& records, const Operation& operation) {
  Standing standing;
  for (uint32_t rank = 0; rank < records.size(); ++rank) {
    if ((operation.members >> rank & 1) == 0) continue;
    uint64_t last = 0;
    const Operation* under_way = nullptr;
    for (const Operation& each : records[rank]) {
      if (each.group != operation.group) continue;
      last = std::max(last, each.sequence);
      if (each.sequence == operation.sequence && each.done_ns == 0) under_way = &each;
    }
    if (last < operation.sequence) {
      standing.behind.push_back(rank);
    } else if (under_way == nullptr) {
      standing.finished.push_back(rank);
    } else {
      standing.waiting.push_back(rank);
      if (under_way->submitted_ns < standing.last_begun_ns) continue;
      standing.last_begun_ns = under_way->submitted_ns;
      standing.last_rank = rank;
    }
  }
  return standing;
}

std::string namesOf(const std::vector<uint32_t>& ranks) {
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", fmt::join(ranks, ", "));
}

std::string describe(const Operation& operation, int64_t now_ns) {
  const std::string time =
      operation.done_ns == 0
          ? fmt::format("under way for {:.2f} s", secondsBetween(operation.submitted_ns, now_ns))
          : fmt::format("took {:.3f} ms", secondsBetween(operation.submitted_ns, operation.done_ns) * 1e3);
  return fmt::format("{} {} of {}, {}, {}", operation.kind, operation.sequence, operation.group, tensorText(operation),
                     time);
}

// The operation whose missing ranks wait for nobody themselves, found from the one that is under way for the longest
// time by way of who is missing there and what they wait in. Null if nobody waits.
const Operation* originOfWaits(const Records& records) {
  const Operation* operation = longestUnderWay(records);
  if (operation == nullptr) return nullptr;
  // No rank is met twice, unless they wait in a circle.
  for (size_t met = 0; met < records.size(); ++met) {
    const Operation* further = nullptr;
    for (const uint32_t rank : standingOf(records, *operation).behind) {
      further = longestUnderWay(records[rank]);
      if (further == nullptr) return operation;
    }
    if (further == nullptr) return operation;
    operation = further;
  }
  return operation;
}

std::string verdictOf(const Records& records, int64_t now_ns) {
  const Operation* operation = originOfWaits(records);
  if (operation == nullptr) return "";
  const Standing standing = standingOf(records, *operation);
  const std::string what = fmt::format("{} {} of {}", operation->kind, operation->sequence, operation->group);
  const double seconds = secondsBetween(operation->submitted_ns, now_ns);
  const auto have = [](const std::vector<uint32_t>& ranks) {
    return fmt::format("{} {}", namesOf(ranks), ranks.size() == 1 ? "has" : "have");
  };
  // Nobody is missing, and others are through: who is not is behind them, not a victim.
  if (standing.behind.empty() && !standing.finished.empty()) {
    return fmt::format("{} not finished {} in {:.2f} s, which {}", have(standing.waiting), what, seconds,
                       have(standing.finished));
  }
  const std::string wait = fmt::format("{} {} in {} for {:.2f} s, which ", namesOf(standing.waiting),
                                       standing.waiting.size() == 1 ? "waits" : "wait", what, seconds);
  if (!standing.behind.empty()) return wait + have(standing.behind) + " not begun";
  return wait + fmt::format("every rank of it has begun and none has finished; rank {} began it last, {:.3f} s later",
                            standing.last_rank, secondsBetween(operation->submitted_ns, standing.last_begun_ns));
}

}  // namespace

std::string verdictOf(const FlightRecorder& recorder, int64_t now_ns) { return verdictOf(read(recorder), now_ns); }

std::vector<std::string> reportLines(const FlightRecorder& recorder, size_t count, int64_t now_ns) {
  const Records records = read(recorder);
  std::vector<std::string> lines;
  if (const std::string verdict = verdictOf(records, now_ns); !verdict.empty()) lines.push_back(verdict);
  for (uint32_t rank = 0; rank < records.size(); ++rank) {
    const std::vector<Operation>& operations = records[rank];
    std::string line = fmt::format("rank {}: {} operations", rank, recorder.totals(Rank(rank)).operations);
    for (size_t index = operations.size() - std::min(count, operations.size()); index < operations.size(); ++index)
      line += "; " + describe(operations[index], now_ns);
    lines.push_back(std::move(line));
  }
  return lines;
}

void fill(const FlightRecorder& recorder, int64_t now_ns, v1::GroupRecord& record) {
  const Records records = read(recorder);
  record.set_verdict(verdictOf(records, now_ns));
  for (uint32_t rank = 0; rank < records.size(); ++rank) {
    const FlightRecorder::Totals totals = recorder.totals(Rank(rank));
    v1::RankRecord& proto = *record.add_ranks();
    proto.set_rank(rank);
    proto.set_operations(totals.operations);
    proto.set_bytes_sent(totals.bytes_sent);
    for (const Operation& operation : records[rank]) {
      v1::MeshOperation& recent = *proto.add_recent();
      recent.set_sequence(operation.sequence);
      recent.set_run(operation.run);
      recent.set_kind(operation.kind);
      recent.set_process_group(operation.group);
      recent.set_dtype(static_cast<v1::DType>(operation.dtype));
      recent.mutable_shape()->Add(operation.shape.begin(), operation.shape.end());
      recent.set_bytes_sent(operation.bytes_sent);
      recent.set_submitted_ns(operation.submitted_ns);
      recent.set_done_ns(operation.done_ns);
    }
  }
}

}  // namespace latentd::supervisor
