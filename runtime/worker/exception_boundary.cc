#include "runtime/worker/exception_boundary.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <exception>
#include <iterator>
#include <new>
#include <string>

#include "mesh/communication_error.h"
#include "runtime/cuda/cuda_status.h"
#include "runtime/worker/device_memory.h"
#include "runtime/worker/process_memory.h"

namespace latentd::worker {
namespace {

Status outOfMemory(const std::string& cause) {
  return absl::ResourceExhaustedError("out of memory: " + cause + "; " + describeMemory() + describeDeviceMemory());
}

// torch's CPU allocator and the libraries of a device have no exception type of their own for it.
bool isOutOfMemory(const std::string& text) {
  constexpr const char* kSigns[] = {"DefaultCPUAllocator", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED"};
  return std::any_of(std::begin(kSigns), std::end(kSigns),
                     [&](const char* sign) { return text.find(sign) != std::string::npos; });
}

// The first line says what happened; the rest is where in torch.
std::string firstLine(const std::string& text) { return text.substr(0, text.find('\n')); }

Status statusOf(const std::string& text) {
  return isOutOfMemory(text) ? outOfMemory(text) : Status(absl::InternalError(text));
}

Status deviceStatus(const c10::AcceleratorError& error) {
  const std::string text = firstLine(error.what_without_backtrace());
  const Status status = cuda::cudaStatus(static_cast<cudaError_t>(error.get_error_code()), text);
  if (status.ok()) return absl::InternalError(text);
  return status.code() == absl::StatusCode::kResourceExhausted ? outOfMemory(messageOf(status)) : status;
}

Status runConverted(const std::function<Status()>& work, GuardedResult& result) {
  bool& clean = result.clean;
  try {
    return work();
  } catch (const mesh::CommunicationError& error) {
    // An argument that no rank could mean was refused before anything was exchanged.
    result.of_peer = !absl::IsInvalidArgument(error.status());
    clean = !result.of_peer;
    return error.status();
  } catch (const c10::OutOfMemoryError& error) {
    return outOfMemory(firstLine(error.what_without_backtrace()));
  } catch (const c10::AcceleratorError& error) {
    clean = error.get_error_code() == cudaErrorMemoryAllocation;
    return deviceStatus(error);
  } catch (const c10::Error& error) {
    return statusOf(firstLine(error.what_without_backtrace()));
  } catch (const std::bad_alloc&) {
    return outOfMemory("an allocation failed");
  } catch (const std::exception& error) {
    // Kernels of torch throw std::runtime_error for it, too.
    return statusOf(firstLine(error.what()));
  } catch (...) {
    clean = false;
    return absl::InternalError("the stage threw something that is no std::exception");
  }
}

}  // namespace

GuardedResult runGuarded(const std::function<Status()>& work) {
  GuardedResult result;
  result.status = runConverted(work, result);
  // Whatever it was that failed: it may be no more than the first to meet an error of the device.
  if (!result.status.ok() && deviceLost()) result.clean = false;
  return result;
}

}  // namespace latentd::worker
