#include "runtime/cuda/stream_drain.h"

#include <memory>
#include <string>

#include "runtime/base/mutex.h"
#include "runtime/cuda/cuda_status.h"

namespace latentd::cuda {
namespace {

// Owners: the waiting call, and the host function until it ran; whichever ends last.
struct Drained {
  Mutex mutex;
  CondVar changed;
  bool done GUARDED_BY(mutex) = false;
};

void CUDART_CB announce(void* argument) {
  const std::unique_ptr<std::shared_ptr<Drained>> drained(static_cast<std::shared_ptr<Drained>*>(argument));
  const MutexLock lock((*drained)->mutex);
  (*drained)->done = true;
  (*drained)->changed.notifyAll();
}

}  // namespace

Status drain(StreamView stream, std::chrono::milliseconds deadline) {
  const DeviceGuard guard(stream.device());
  // Nothing pending is the usual case, and costs no thread switch.
  const cudaError_t state = cudaStreamQuery(stream.get());
  if (state == cudaSuccess) return absl::OkStatus();
  if (state != cudaErrorNotReady) return cudaStatus(state, "draining a stream");
  (void)cudaGetLastError();
  const auto drained = std::make_shared<Drained>();
  auto argument = std::make_unique<std::shared_ptr<Drained>>(drained);
  LATENTD_CUDA_RETURN_IF_ERROR(cudaLaunchHostFunc(stream.get(), announce, argument.get()), "draining a stream");
  argument.release();
  const auto end = std::chrono::steady_clock::now() + deadline;
  const MutexLock lock(drained->mutex);
  while (!drained->done) {
    if (!drained->changed.waitUntil(drained->mutex, end) && !drained->done) {
      return absl::DeadlineExceededError("a stream did not drain within " + std::to_string(deadline.count()) + " ms");
    }
  }
  return absl::OkStatus();
}

}  // namespace latentd::cuda
