#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "mesh/process_group.h"

namespace latentd::mesh {

// Consecutive layers of a model, [begin, end).
struct LayerRange {
  int64_t begin = 0;
  int64_t end = 0;
};

// Those of one rank of a pipeline: as equal shares as whole layers allow, in rank order.
LayerRange pipelineLayers(int64_t layers, int64_t degree, int64_t rank);

// Layers of one model on different ranks: micro-batches go from rank to rank, and while one is with the second rank the
// next is with the first. Shapes go round with the first run and are kept; later runs send features alone.
// Owner: a stage, for one job; the group outlives it. Thread: the executor's. Failure: throws CommunicationError, and
// c10::Error for features whose shape changes.
class PipelineP2P {
 public:
  // What a rank makes of micro-batch `index` with its layers. x: what the rank before it made of it, to be consumed;
  // undefined on the first rank, which begins.
  using RankLayers = std::function<at::Tensor(size_t index, at::Tensor x)>;

  // device: of the features.
  PipelineP2P(ProcessGroup& group, at::Device device) : group_(group), device_(device) {}

  // What the last rank makes of each of `count` micro-batches, on every rank. The same count on each rank and in each
  // run; what ranks make has the same shape for all micro-batches, and on all ranks but the last.
  std::vector<at::Tensor> run(size_t count, const RankLayers& layers);

 private:
  bool first() const { return group_.rank() == 0; }
  bool last() const { return group_.rank() == group_.size() - 1; }
  // On every rank: an empty tensor like the root's `made`.
  at::Tensor likeThatOf(int root, const at::Tensor& made);
  // Ends a tick on every rank: what was made goes to the next one. Returns what this rank gets, if it gets something.
  at::Tensor passOn(int64_t tick, int64_t count, const at::Tensor& made);
  // What the last rank gives, on every rank.
  at::Tensor shareResults(at::Tensor results);

  ProcessGroup& group_;
  const at::Device device_;
  std::array<at::Tensor, 2> incoming_;  // by turns: a rank may make its features in the memory of those that it got
  at::Tensor results_;                  // the shape of all results together
};

}  // namespace latentd::mesh
