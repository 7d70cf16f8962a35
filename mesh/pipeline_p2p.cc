#include "mesh/pipeline_p2p.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <utility>

namespace latentd::mesh {
namespace {

// Of a shape as it goes round: dimensions, type, sizes.
constexpr int64_t kHeader = 8;
constexpr int64_t kDimsMax = kHeader - 2;

at::Tensor headerOf(const at::Tensor& tensor) {
  TORCH_CHECK_VALUE(tensor.dim() <= kDimsMax, "features of ", tensor.dim(), " dimensions, at most ", kDimsMax);
  at::Tensor header = at::zeros({kHeader}, at::kLong);
  auto* values = header.mutable_data_ptr<int64_t>();
  *values++ = tensor.dim();
  *values++ = static_cast<int64_t>(tensor.scalar_type());
  for (const int64_t size : tensor.sizes())
    *values++ = size;
  return header;
}

at::Tensor emptyOf(const at::Tensor& header, at::Device device) {
  const auto* values = header.const_data_ptr<int64_t>();
  return at::empty(at::IntArrayRef(values + 2, static_cast<size_t>(values[0])),
                   at::TensorOptions().dtype(static_cast<at::ScalarType>(values[1])).device(device));
}

at::Tensor emptyStack(int64_t count, const at::Tensor& part) {
  std::vector<int64_t> shape = part.sizes().vec();
  shape.insert(shape.begin(), count);
  return at::empty(shape, part.options());
}

void checkSame(const at::Tensor& made, const at::Tensor& expected) {
  TORCH_CHECK_VALUE(made.sizes() == expected.sizes() && made.scalar_type() == expected.scalar_type(),
                    "a pipeline's features are ", made.scalar_type(), " ", made.sizes(), ", they have been ",
                    expected.scalar_type(), " ", expected.sizes());
}

}  // namespace

LayerRange pipelineLayers(int64_t layers, int64_t degree, int64_t rank) {
  return {layers * rank / degree, layers * (rank + 1) / degree};
}

at::Tensor PipelineP2P::likeThatOf(int root, const at::Tensor& made) {
  at::Tensor header = (group_.rank() == root ? headerOf(made) : at::zeros({kHeader}, at::kLong)).to(device_);
  group_.broadcast(header, root).wait();
  return emptyOf(header.cpu(), device_);
}

at::Tensor PipelineP2P::passOn(int64_t tick, int64_t count, const at::Tensor& made) {
  // Micro-batch m is with rank r in tick m + r.
  const auto busy = [&](int rank) { return tick >= rank && tick - rank < count; };
  const int rank = group_.rank();
  // The first rank has made something in the first tick of all.
  if (!incoming_[0].defined()) {
    incoming_[0] = likeThatOf(0, made);
    incoming_[1] = at::empty_like(incoming_[0]);
  }
  const at::Tensor& next = incoming_[static_cast<size_t>(tick + 1) % incoming_.size()];
  std::vector<PeerTensor> sends;
  std::vector<PeerTensor> receives;
  if (busy(rank) && !last()) {
    checkSame(made, next);
    sends.push_back({rank + 1, made.contiguous()});
  }
  if (!first() && busy(rank - 1)) receives.push_back({rank - 1, next});
  group_.exchange(std::move(sends), std::move(receives)).wait();
  return next;
}

std::vector<at::Tensor> PipelineP2P::run(size_t count, const RankLayers& layers) {
  const auto micro_batches = static_cast<int64_t>(count);
  at::Tensor results;
  at::Tensor x;
  for (int64_t tick = 0; tick < micro_batches + group_.size() - 1; ++tick) {
    const int64_t index = tick - group_.rank();
    at::Tensor made;
    if (index >= 0 && index < micro_batches) {
      made = layers(static_cast<size_t>(index), first() ? at::Tensor() : std::move(x));
      if (last()) {
        if (!results.defined()) results = emptyStack(micro_batches, made);
        results[index].copy_(made);  // it may lie in the memory that the next micro-batch but one comes to
      }
    }
    x = passOn(tick, micro_batches, made);
  }
  return shareResults(results).unbind(0);
}

at::Tensor PipelineP2P::shareResults(at::Tensor results) {
  const int root = group_.size() - 1;
  if (!results_.defined()) results_ = likeThatOf(root, results);
  if (last()) {
    checkSame(results, results_);
  } else {
    results = at::empty_like(results_);
  }
  group_.broadcast(results, root).wait();
  return results;
}

}  // namespace latentd::mesh
