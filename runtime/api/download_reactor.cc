#include "runtime/api/download_reactor.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "runtime/api/convert.h"

namespace latentd::api {
namespace {

// Large enough that the cost of a message vanishes, small enough that hundreds of slow readers stay cheap. A read of
// this size from the local spool is short, so it is done on gRPC's own thread.
constexpr uint64_t kChunkBytes = 256 * 1024;

// Fewer bytes than asked for only at the end of the file.
StatusOr<size_t> readAt(int fd, char* data, size_t bytes, uint64_t offset) {
  size_t done = 0;
  while (done < bytes) {
    const ssize_t got = ::pread(fd, data + done, bytes - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return errnoStatus(errno, "reading the result at offset " + std::to_string(offset + done));
    if (got == 0) break;
    done += static_cast<size_t>(got);
  }
  return done;
}

}  // namespace

DownloadReactor::DownloadReactor(StreamLimit::Lease lease, CallMetrics call, metrics::Counter& bytes_sent,
                                 supervisor::ResultFile file, uint64_t offset)
    : lease_(std::move(lease)), call_(call), bytes_sent_(bytes_sent), file_(std::move(file)), offset_(offset) {}

void DownloadReactor::writeNext() {
  const size_t wanted = std::min(kChunkBytes, file_.bytes - offset_);
  if (wanted == 0) return finish(grpc::Status::OK);
  chunk_.mutable_data()->resize(wanted);
  const StatusOr<size_t> got = readAt(file_.fd.get(), chunk_.mutable_data()->data(), wanted, offset_);
  if (!got.ok()) return finish(toGrpc(got.status()));
  if (*got < wanted) {
    return finish(grpc::Status(
        grpc::StatusCode::DATA_LOSS,
        "the result ends at byte " + std::to_string(offset_ + *got) + " of " + std::to_string(file_.bytes)));
  }
  chunk_.set_offset(offset_);
  chunk_.set_total_bytes(file_.bytes);
  offset_ += wanted;
  write(chunk_);
}

void DownloadReactor::finish(const grpc::Status& status) {
  code_ = status.error_code();
  Finish(status);
}

void DownloadReactor::OnWriteDone(bool ok) {
  if (!ok) return finish(grpc::Status::CANCELLED);
  bytes_sent_.Increment(static_cast<double>(chunk_.data().size()));
  writeNext();
}

void DownloadReactor::OnDone() {
  call_.ended(code_);
  delete this;
}

}  // namespace latentd::api
