#pragma once

#include <memory>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "mesh/communicator.h"

namespace latentd::mesh {

using C10dWork = c10::intrusive_ptr<c10d::Work>;

// The collectives of c10d, which are the same whatever carries them; exchanges and the end are each library's own.
// Nothing is awaited before an operation starts, so that deadlines say nothing here.
class C10dCommunicator : public Communicator {
 public:
  explicit C10dCommunicator(c10::intrusive_ptr<c10d::Backend> group) : group_(std::move(group)) {}

  std::unique_ptr<Work> allGather(at::Tensor output, at::Tensor input, Deadline) final {
    return started({group_->_allgather_base(output, input)});
  }

  std::unique_ptr<Work> allReduceSum(at::Tensor tensor, Deadline) final {
    std::vector<at::Tensor> tensors{std::move(tensor)};
    return started({group_->allreduce(tensors)});
  }

  std::unique_ptr<Work> allToAll(at::Tensor output, at::Tensor input, Deadline) final {
    std::vector<int64_t> equal_blocks;
    return started({group_->alltoall_base(output, input, equal_blocks, equal_blocks)});
  }

  std::unique_ptr<Work> broadcast(at::Tensor tensor, int root, Deadline) final {
    std::vector<at::Tensor> tensors{std::move(tensor)};
    c10d::BroadcastOptions options;
    options.rootRank = root;
    return started({group_->broadcast(tensors, options)});
  }

 protected:
  class PartsWork final : public Work {
   public:
    explicit PartsWork(std::vector<C10dWork> parts) : parts_(std::move(parts)) {}

    void wait() override {
      for (const C10dWork& part : parts_)
        part->wait();
    }

   private:
    std::vector<C10dWork> parts_;
  };

  static std::unique_ptr<Work> started(std::vector<C10dWork> parts) {
    return std::make_unique<PartsWork>(std::move(parts));
  }

  c10d::Backend& group() const { return *group_; }

 private:
  c10::intrusive_ptr<c10d::Backend> group_;
};

}  // namespace latentd::mesh
