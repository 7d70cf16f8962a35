#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "runtime/base/dtype.h"
#include "tools/ctl/admin_commands.h"
#include "tools/ctl/text.h"

namespace latentd::ctl {
namespace {

double secondsBetween(int64_t from_ns, int64_t to_ns) { return static_cast<double>(to_ns - from_ns) * 1e-9; }

std::string shapeOf(const v1::MeshOperation& operation) {
  return operation.shape().empty() ? "scalar" : fmt::format("{}", fmt::join(operation.shape(), "x"));
}

std::string timeOf(const v1::MeshOperation& operation, int64_t now_ns) {
  if (operation.done_ns() == 0) {
    return "under way for " + formatSeconds(secondsBetween(operation.submitted_ns(), now_ns));
  }
  return fmt::format("{:.3f} ms", secondsBetween(operation.submitted_ns(), operation.done_ns()) * 1e3);
}

constexpr const char* kLegend =
    "BEGUN, SENT: operations and bytes of the rank in this epoch. AGO, BEFORE END: since the operation began, until "
    "now or\n"
    "until the epoch's end. RUN: of the group's commands in this epoch; - is its start. NUMBER: of the operations of "
    "the\n"
    "process group; ranks that are at the same have the same. DTYPE, SHAPE: of what the rank gives. BYTES: of it, to\n"
    "other ranks. TOOK: from beginning to end.\n";

// "denoise, epoch 4", "denoise, epoch 3, which failed 12.0 s ago, at 2026-01-31 14:05:09: UNAVAILABLE: ...".
std::string headText(const v1::GroupRecord& group, int64_t now_ns) {
  const std::string name = fmt::format("{}, epoch {}", group.group(), group.epoch());
  if (!group.ended()) return name + "\n";
  return fmt::format("{}, which failed {} ago, at {}: {}: {}\n", name,
                     formatSeconds(secondsBetween(group.ended_ns(), now_ns)), formatTime(group.end_time()),
                     statusCodeName(group.cause().code()), group.cause().message());
}

std::string groupText(const v1::GroupRecord& group, uint32_t last, int64_t asked_ns) {
  std::string text = headText(group, asked_ns);
  if (!group.verdict().empty()) text += group.verdict() + "\n";
  // What a failed epoch did does not get older.
  const int64_t now_ns = group.ended() ? group.ended_ns() : asked_ns;
  std::vector<std::vector<std::string>> rows{{"RANK", "BEGUN", "SENT", group.ended() ? "BEFORE END" : "AGO",
                                              "OPERATION", "PROCESS GROUP", "RUN", "NUMBER", "DTYPE", "SHAPE", "BYTES",
                                              "TOOK"}};
  for (const v1::RankRecord& rank : group.ranks()) {
    std::vector<std::string> head{std::to_string(rank.rank()), std::to_string(rank.operations()),
                                  formatBytes(rank.bytes_sent())};
    if (rank.recent().empty()) rows.push_back(head);
    const int first = rank.recent_size() - std::min(rank.recent_size(), static_cast<int>(last));
    for (int index = first; index < rank.recent_size(); ++index) {
      const v1::MeshOperation& operation = rank.recent(index);
      std::vector<std::string> row = index == first ? head : std::vector<std::string>(head.size());
      row.insert(row.end(),
                 {formatSeconds(secondsBetween(operation.submitted_ns(), now_ns)), operation.kind(),
                  operation.process_group(), operation.run() == 0 ? "-" : std::to_string(operation.run()),
                  std::to_string(operation.sequence()), std::string(toString(static_cast<DType>(operation.dtype()))),
                  shapeOf(operation), formatBytes(operation.bytes_sent()), timeOf(operation, now_ns)});
      rows.push_back(std::move(row));
    }
  }
  return text + formatTable(rows);
}

}  // namespace

ExitCode runDump(const GlobalOptions& global, const DumpOptions& options) {
  const Client client(global);
  v1::GetFlightRecordsRequest request;
  request.set_group(options.group);
  v1::FlightRecords records;
  const grpc::Status status = client.call(client.admin(), &v1::Admin::Stub::GetFlightRecords, request, &records);
  if (!status.ok()) return client.fail(status);
  std::string text;
  for (const v1::GroupRecord& group : records.groups())
    text += (text.empty() ? "" : "\n") + groupText(group, options.last, records.now_ns());
  text = text.empty() ? "no group has several ranks\n" : text + "\n" + kLegend;
  std::fputs((global.json ? toJson(records, true) : text).c_str(), stdout);
  return ExitCode::kOk;
}

}  // namespace latentd::ctl
