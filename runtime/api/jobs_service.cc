#include "runtime/api/jobs_service.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/api/byte_stream.h"
#include "runtime/api/download_reactor.h"
#include "runtime/api/message_bytes.h"
#include "runtime/api/trace_reactor.h"
#include "runtime/api/unary.h"
#include "runtime/api/watch_reactor.h"

namespace latentd::api {
namespace {

// Each costs a few KiB, or one chunk and a descriptor: five times the 200 clients that the daemon is tested with, and
// well inside the usual limit of 1024 descriptors for the downloads.
constexpr int64_t kWatchesMax = 1000;
constexpr int64_t kDownloadsMax = 400;

// gRPC clients refuse messages over 4 MiB unless told otherwise; long prompts make a page larger than that.
constexpr size_t kListBytesMax = 3 * 1024 * 1024;

Status tooMany(const char* what, const StreamLimit& limit) {
  return makeStatus(absl::StatusCode::kResourceExhausted,
                    "all " + std::to_string(limit.openMax()) + " " + what + " are in use; close some, or try again");
}

// The stream, or one that ends with what kept it from opening.
grpc::ServerWriteReactor<grpc::ByteBuffer>* orRefused(CallMetrics call,
                                                      StatusOr<grpc::ServerWriteReactor<grpc::ByteBuffer>*> stream) {
  if (stream.ok()) return *stream;
  return new RefusedStream(call, stream.status());
}

}  // namespace

JobsService::JobsService(supervisor::JobService& jobs, metrics::ApiMetrics& metrics)
    : jobs_(jobs),
      metrics_(metrics),
      watches_(kWatchesMax, metrics.watchers),
      downloads_(kDownloadsMax, metrics.downloads) {}

// ---- unary calls ----------------------------------------------------------------------------------------------

grpc::ServerUnaryReactor* JobsService::Submit(Context* context, const Bytes* request, Bytes* response) {
  return answerUnary<v1::SubmitRequest>(context, CallMetrics(metrics_, "Submit"), *request, response,
                                        [&](const auto& parsed) { return jobs_.submit(parsed); });
}

grpc::ServerUnaryReactor* JobsService::Get(Context* context, const Bytes* request, Bytes* response) {
  return answerUnary<v1::GetJobRequest>(context, CallMetrics(metrics_, "Get"), *request, response,
                                        [&](const auto& parsed) { return jobs_.get(parsed.id()); });
}

grpc::ServerUnaryReactor* JobsService::List(Context* context, const Bytes* request, Bytes* response) {
  return answerUnary<v1::ListJobsRequest>(context, CallMetrics(metrics_, "List"), *request, response,
                                          [&](const auto& parsed) { return listBounded(parsed); });
}

StatusOr<v1::ListJobsResponse> JobsService::listBounded(v1::ListJobsRequest request) {
  for (;;) {
    LATENTD_ASSIGN_OR_RETURN(v1::ListJobsResponse page, jobs_.list(request));
    if (page.ByteSizeLong() <= kListBytesMax || page.jobs_size() == 1) return page;
    request.set_page_size(static_cast<uint32_t>(page.jobs_size()) / 2);
  }
}

grpc::ServerUnaryReactor* JobsService::Cancel(Context* context, const Bytes* request, Bytes* response) {
  return answerUnary<v1::CancelJobRequest>(context, CallMetrics(metrics_, "Cancel"), *request, response,
                                           [&](const auto& parsed) { return jobs_.cancel(parsed.id()); });
}

grpc::ServerUnaryReactor* JobsService::Delete(Context* context, const Bytes* request, Bytes* response) {
  return answerUnary<v1::DeleteJobRequest>(context, CallMetrics(metrics_, "Delete"), *request, response,
                                           [&](const auto& parsed) -> StatusOr<v1::DeleteJobResponse> {
                                             LATENTD_RETURN_IF_ERROR(jobs_.remove(parsed.id()));
                                             return v1::DeleteJobResponse();
                                           });
}

// ---- streams --------------------------------------------------------------------------------------------------

JobsService::Stream* JobsService::Watch(Context*, const Bytes* request) {
  const CallMetrics call(metrics_, "Watch");
  return orRefused(call, openWatch(call, *request));
}

StatusOr<JobsService::Stream*> JobsService::openWatch(CallMetrics call, const Bytes& request) {
  LATENTD_ASSIGN_OR_RETURN(const auto parsed, parseRequest<v1::WatchJobRequest>(request));
  std::optional<StreamLimit::Lease> lease = watches_.acquire();
  if (!lease) return tooMany("watch streams", watches_);
  auto* reactor = new WatchReactor(std::move(*lease), call, metrics_.watch_skipped);
  reactor->start(jobs_, parsed.id());
  return reactor;
}

JobsService::Stream* JobsService::Download(Context*, const Bytes* request) {
  const CallMetrics call(metrics_, "Download");
  return orRefused(call, openDownload(call, *request));
}

StatusOr<JobsService::Stream*> JobsService::openDownload(CallMetrics call, const Bytes& request) {
  LATENTD_ASSIGN_OR_RETURN(const auto parsed, parseRequest<v1::DownloadRequest>(request));
  std::optional<StreamLimit::Lease> lease = downloads_.acquire();
  if (!lease) return tooMany("download streams", downloads_);
  LATENTD_ASSIGN_OR_RETURN(supervisor::ResultFile file, jobs_.openResult(parsed.id()));
  if (parsed.offset() > file.bytes) {
    return makeStatus(absl::StatusCode::kOutOfRange, "offset: " + std::to_string(parsed.offset()) +
                                                         " is beyond the result's " + std::to_string(file.bytes) +
                                                         " bytes");
  }
  auto* reactor =
      new DownloadReactor(std::move(*lease), call, metrics_.download_bytes, std::move(file), parsed.offset());
  reactor->start();
  return reactor;
}

JobsService::Stream* JobsService::GetTrace(Context*, const Bytes* request) {
  const CallMetrics call(metrics_, "GetTrace");
  return orRefused(call, openTrace(call, *request));
}

StatusOr<JobsService::Stream*> JobsService::openTrace(CallMetrics call, const Bytes& request) {
  LATENTD_ASSIGN_OR_RETURN(const auto parsed, parseRequest<v1::GetTraceRequest>(request));
  std::optional<StreamLimit::Lease> lease = downloads_.acquire();
  if (!lease) return tooMany("download streams", downloads_);
  LATENTD_ASSIGN_OR_RETURN(std::vector<v1::TraceTrack> tracks, jobs_.trace(parsed.id()));
  auto* reactor = new TraceReactor(std::move(*lease), call, std::move(tracks));
  reactor->start();
  return reactor;
}

}  // namespace latentd::api
