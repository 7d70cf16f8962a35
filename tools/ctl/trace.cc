#include <fmt/format.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tools/ctl/job_commands.h"
#include "tools/ctl/output_file.h"
#include "tools/ctl/text.h"
#include "tools/ctl/trace_events.h"

namespace latentd::ctl {
namespace {

grpc::Status fetchTrace(const Client& client, const std::string& id, std::vector<v1::TraceTrack>& tracks) {
  v1::GetTraceRequest request;
  request.set_id(id);
  grpc::ClientContext context;
  context.set_deadline(client.deadline());
  const auto reader = client.jobs().GetTrace(&context, request);
  v1::TraceTrack track;
  while (reader->Read(&track))
    tracks.push_back(std::move(track));
  return reader->Finish();
}

Status write(const std::string& path, const std::string& text) {
  LATENTD_ASSIGN_OR_RETURN(OutputFile file, OutputFile::open(path));
  LATENTD_RETURN_IF_ERROR(file.write(text));
  return file.commit();
}

void report(const GlobalOptions& global, const std::string& path, const std::vector<v1::TraceTrack>& tracks) {
  int spans = 0;
  uint64_t dropped = 0;
  for (const v1::TraceTrack& track : tracks) {
    spans += track.spans_size();
    dropped += track.dropped();
  }
  if (global.json) {
    const nlohmann::ordered_json line{{"file", path}, {"spans", spans}, {"dropped", dropped}};
    std::printf("%s\n", line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
    return;
  }
  std::fputs(
      fmt::format("wrote {} ({} spans): open it with ui.perfetto.dev or chrome://tracing\n", path, spans).c_str(),
      stdout);
  if (dropped == 0) return;
  std::fputs(
      fmt::format("{} spans are missing: the topology's trace.spans_max is too small for this job\n", dropped).c_str(),
      stderr);
}

}  // namespace

ExitCode runTrace(const GlobalOptions& global, const DownloadOptions& options) {
  const Client client(global);
  std::vector<v1::TraceTrack> tracks;
  const grpc::Status status = fetchTrace(client, options.id, tracks);
  if (!status.ok()) return client.fail(status);
  const std::string path = options.output.empty() ? options.id + ".trace.json" : options.output;
  if (const Status written = write(path, toTraceEvents(options.id, tracks)); !written.ok()) {
    const bool usage = written.code() == absl::StatusCode::kInvalidArgument;
    return client.fail(usage ? ExitCode::kUsage : ExitCode::kLocalFile, messageOf(written));
  }
  if (path != "-") report(global, path, tracks);
  return ExitCode::kOk;
}

}  // namespace latentd::ctl
