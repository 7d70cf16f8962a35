#include "runtime/api/jobs_service.h"

#include <utility>

#include "runtime/api/download_reactor.h"
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

}  // namespace

JobsService::JobsService(supervisor::JobService& jobs, metrics::ApiMetrics& metrics)
    : jobs_(jobs),
      metrics_(metrics),
      watches_(kWatchesMax, metrics.watchers),
      downloads_(kDownloadsMax, metrics.downloads) {}

grpc::ServerUnaryReactor* JobsService::Submit(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                              grpc::ByteBuffer* response) {
  const CallMetrics call(metrics_, "Submit");
  return finishUnary(context, call, submit(*request), response);
}

StatusOr<grpc::ByteBuffer> JobsService::submit(const grpc::ByteBuffer& bytes) {
  v1::SubmitRequest request;
  grpc::ByteBuffer consumed(bytes);
  if (!grpc::SerializationTraits<v1::SubmitRequest>::Deserialize(&consumed, &request).ok()) {
    return absl::InvalidArgumentError(
        "parameters: the request is no SubmitRequest of latentd.v1, or a text in it is not valid UTF-8; send UTF-8");
  }
  LATENTD_ASSIGN_OR_RETURN(const v1::Job job, jobs_.submit(request));
  grpc::ByteBuffer answer;
  bool own_buffer = false;
  const grpc::Status serialized = grpc::SerializationTraits<v1::Job>::Serialize(job, &answer, &own_buffer);
  if (!serialized.ok()) return absl::InternalError("the job could not be serialized: " + serialized.error_message());
  return answer;
}

grpc::ServerUnaryReactor* JobsService::Get(grpc::CallbackServerContext* context, const v1::GetJobRequest* request,
                                           v1::Job* response) {
  const CallMetrics call(metrics_, "Get");
  return finishUnary(context, call, jobs_.get(request->id()), response);
}

grpc::ServerUnaryReactor* JobsService::List(grpc::CallbackServerContext* context, const v1::ListJobsRequest* request,
                                            v1::ListJobsResponse* response) {
  const CallMetrics call(metrics_, "List");
  return finishUnary(context, call, listBounded(*request), response);
}

StatusOr<v1::ListJobsResponse> JobsService::listBounded(v1::ListJobsRequest request) {
  for (;;) {
    LATENTD_ASSIGN_OR_RETURN(v1::ListJobsResponse page, jobs_.list(request));
    if (page.ByteSizeLong() <= kListBytesMax || page.jobs_size() == 1) return page;
    request.set_page_size(static_cast<uint32_t>(page.jobs_size()) / 2);
  }
}

grpc::ServerUnaryReactor* JobsService::Cancel(grpc::CallbackServerContext* context, const v1::CancelJobRequest* request,
                                              v1::Job* response) {
  const CallMetrics call(metrics_, "Cancel");
  return finishUnary(context, call, jobs_.cancel(request->id()), response);
}

grpc::ServerWriteReactor<v1::Job>* JobsService::Watch(grpc::CallbackServerContext*,
                                                      const v1::WatchJobRequest* request) {
  const CallMetrics call(metrics_, "Watch");
  std::optional<StreamLimit::Lease> lease = watches_.acquire();
  if (!lease) return new RefusedStream<v1::Job>(call, tooMany("watch streams", watches_));
  auto* reactor = new WatchReactor(std::move(*lease), call, metrics_.watch_skipped);
  reactor->start(jobs_, request->id());
  return reactor;
}

grpc::ServerWriteReactor<v1::DownloadChunk>* JobsService::Download(grpc::CallbackServerContext*,
                                                                   const v1::DownloadRequest* request) {
  using Refused = RefusedStream<v1::DownloadChunk>;
  const CallMetrics call(metrics_, "Download");
  std::optional<StreamLimit::Lease> lease = downloads_.acquire();
  if (!lease) return new Refused(call, tooMany("download streams", downloads_));
  StatusOr<supervisor::ResultFile> file = jobs_.openResult(request->id());
  if (!file.ok()) return new Refused(call, file.status());
  if (request->offset() > file->bytes) {
    return new Refused(call, makeStatus(absl::StatusCode::kOutOfRange, "offset: " + std::to_string(request->offset()) +
                                                                           " is beyond the result's " +
                                                                           std::to_string(file->bytes) + " bytes"));
  }
  auto* reactor =
      new DownloadReactor(std::move(*lease), call, metrics_.download_bytes, std::move(file).value(), request->offset());
  reactor->start();
  return reactor;
}

grpc::ServerWriteReactor<v1::TraceTrack>* JobsService::GetTrace(grpc::CallbackServerContext*,
                                                                const v1::GetTraceRequest* request) {
  using Refused = RefusedStream<v1::TraceTrack>;
  const CallMetrics call(metrics_, "GetTrace");
  std::optional<StreamLimit::Lease> lease = downloads_.acquire();
  if (!lease) return new Refused(call, tooMany("download streams", downloads_));
  StatusOr<std::vector<v1::TraceTrack>> tracks = jobs_.trace(request->id());
  if (!tracks.ok()) return new Refused(call, tracks.status());
  auto* reactor = new TraceReactor(std::move(*lease), call, *std::move(tracks));
  reactor->start();
  return reactor;
}

grpc::ServerUnaryReactor* JobsService::Delete(grpc::CallbackServerContext* context, const v1::DeleteJobRequest* request,
                                              v1::DeleteJobResponse* response) {
  const CallMetrics call(metrics_, "Delete");
  const Status status = jobs_.remove(request->id());
  StatusOr<v1::DeleteJobResponse> result{v1::DeleteJobResponse()};
  if (!status.ok()) result = status;
  return finishUnary(context, call, std::move(result), response);
}

}  // namespace latentd::api
