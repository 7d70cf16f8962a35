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

std::string groupText(const v1::GroupRecord& group, uint32_t last, int64_t now_ns) {
  std::string text =
      fmt::format("{}, epoch {}{}\n", group.group(), group.epoch(), group.ended() ? ", which ended" : "");
  if (!group.verdict().empty()) text += group.verdict() + "\n";
  std::vector<std::vector<std::string>> rows{
      {"RANK", "BEGUN", "SENT", "AGO", "OPERATION", "PROCESS GROUP", "NUMBER", "DTYPE", "SHAPE", "BYTES", "TOOK"}};
  for (const v1::RankRecord& rank : group.ranks()) {
    std::vector<std::string> head{std::to_string(rank.rank()), std::to_string(rank.operations()),
                                  formatBytes(rank.bytes_sent())};
    if (rank.recent().empty()) rows.push_back(head);
    const int first = rank.recent_size() - std::min(rank.recent_size(), static_cast<int>(last));
    for (int index = first; index < rank.recent_size(); ++index) {
      const v1::MeshOperation& operation = rank.recent(index);
      std::vector<std::string> row = index == first ? head : std::vector<std::string>(head.size());
      row.insert(row.end(), {formatSeconds(secondsBetween(operation.submitted_ns(), now_ns)), operation.kind(),
                             operation.process_group(), std::to_string(operation.sequence()),
                             std::string(toString(static_cast<DType>(operation.dtype()))), shapeOf(operation),
                             formatBytes(operation.bytes_sent()), timeOf(operation, now_ns)});
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
  if (text.empty()) text = "no group has several ranks\n";
  std::fputs((global.json ? toJson(records, true) : text).c_str(), stdout);
  return ExitCode::kOk;
}

}  // namespace latentd::ctl
