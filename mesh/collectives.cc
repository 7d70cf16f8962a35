#include "mesh/collectives.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

namespace latentd::mesh {

at::Tensor allGatherStacked(ProcessGroup& group, const at::Tensor& local) {
  if (group.size() == 1) return local.unsqueeze(0);
  std::vector<int64_t> shape = local.sizes().vec();
  shape.insert(shape.begin(), group.size());
  at::Tensor stacked = at::empty(shape, local.options());
  group.allGather(stacked.flatten(0, 1), local.contiguous()).wait();
  return stacked;
}

at::Tensor allGatherCat(ProcessGroup& group, const at::Tensor& local, int64_t dim) {
  if (group.size() == 1) return local;
  const int64_t along = dim < 0 ? dim + local.dim() : dim;
  // The ranks beside what they shared out; a copy only where that is not where they are.
  return allGatherStacked(group, local).movedim(0, along).flatten(along, along + 1);
}

void allReduceSum_(ProcessGroup& group, const std::vector<at::Tensor>& tensors) {
  std::vector<Pending> submitted;
  submitted.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors)
    submitted.push_back(group.allReduceSum(tensor));
  for (Pending& pending : submitted)
    pending.wait();
}

std::vector<int64_t> allGatherInt(ProcessGroup& group, int64_t value, at::Device device) {
  const at::Tensor mine = at::full({1}, value, at::TensorOptions(at::kLong).device(device));
  const at::Tensor all = allGatherStacked(group, mine).to(at::kCPU);
  const int64_t* values = all.const_data_ptr<int64_t>();
  return {values, values + all.numel()};
}

}  // namespace latentd::mesh
