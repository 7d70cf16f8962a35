#include "runtime/cuda/stream_words.h"

#include <cuda.h>

#include <algorithm>

#include "runtime/cuda/cuda_status.h"

namespace latentd::cuda {
namespace {

constexpr const char* kName = "cuStreamBatchMemOp";
// Since when it has the form that is used here.
constexpr unsigned kVersion = 11070;
// The driver's limit of one submission.
constexpr size_t kOperationsMax = 256;

CUstreamBatchMemOpParams parametersOf(const WordOperation& operation) {
  CUstreamBatchMemOpParams parameters{};
  const auto address = reinterpret_cast<CUdeviceptr>(operation.word);
  if (operation.kind == WordOperation::Kind::kWrite) {
    parameters.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    parameters.writeValue.address = address;
    parameters.writeValue.value = operation.value;
    parameters.writeValue.flags = CU_STREAM_WRITE_VALUE_DEFAULT;
  } else {
    parameters.waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
    parameters.waitValue.address = address;
    parameters.waitValue.value = operation.value;
    parameters.waitValue.flags = CU_STREAM_WAIT_VALUE_GEQ;
  }
  return parameters;
}

}  // namespace

StatusOr<StreamWords> StreamWords::load() {
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found{};
  LATENTD_CUDA_RETURN_IF_ERROR(cudaGetDriverEntryPointByVersion(kName, &entry, kVersion, cudaEnableDefault, &found),
                               "looking up stream memory operations");
  if (found != cudaDriverEntryPointSuccess || entry == nullptr)
    return absl::FailedPreconditionError("the CUDA driver has no stream memory operations");
  return StreamWords(entry);
}

Status StreamWords::submit(StreamView stream, std::span<const WordOperation> operations) const {
  const DeviceGuard guard(stream.device());
  const auto batch = reinterpret_cast<decltype(&cuStreamBatchMemOp)>(batch_);
  for (size_t first = 0; first < operations.size(); first += kOperationsMax) {
    const auto part = operations.subspan(first, std::min(kOperationsMax, operations.size() - first));
    std::vector<CUstreamBatchMemOpParams> parameters(part.size());
    std::transform(part.begin(), part.end(), parameters.begin(), parametersOf);
    const CUresult result = batch(stream.get(), static_cast<unsigned>(part.size()), parameters.data(), 0);
    // The runtime's codes are the driver's.
    LATENTD_CUDA_RETURN_IF_ERROR(static_cast<cudaError_t>(result), "submitting stream memory operations");
  }
  return absl::OkStatus();
}

}  // namespace latentd::cuda
