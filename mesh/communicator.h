#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

namespace latentd::mesh {

// One point-to-point part of a batch.
struct PeerTensor {
  int peer = 0;       // rank inside the process group
  at::Tensor tensor;  // contiguous
};

// What carries the operations of one process group: c10d's Gloo or NCCL, or Gloo behind a staging of CUDA tensors.
// Arguments are valid (ProcessGroup checks them), and live until their work was waited for.
// Owner: a ProcessGroup. Thread: one at a time; abort() from any.
// States: open -> aborted. Failure: whatever its library throws, and TimedOut; ProcessGroup turns it into a status, and
// aborts what outlasts its deadline.
class Communicator {
 public:
  using Deadline = std::chrono::steady_clock::time_point;

  // What had to be done before an operation could start was not done by its deadline.
  struct TimedOut {};

  // An operation under way. Destroyed after wait() returned or threw, or after abort().
  class Work {
   public:
    virtual ~Work() = default;
    // Afterwards the current stream (the host, of CPU tensors) may use the results.
    virtual void wait() = 0;
  };

  virtual ~Communicator() = default;

  virtual std::unique_ptr<Work> allGather(at::Tensor output, at::Tensor input, Deadline deadline) = 0;
  virtual std::unique_ptr<Work> allReduceSum(at::Tensor tensor, Deadline deadline) = 0;
  virtual std::unique_ptr<Work> allToAll(at::Tensor output, at::Tensor input, Deadline deadline) = 0;
  virtual std::unique_ptr<Work> broadcast(at::Tensor tensor, int root, Deadline deadline) = 0;
  virtual std::unique_ptr<Work> exchange(std::vector<PeerTensor> sends, std::vector<PeerTensor> receives,
                                         Deadline deadline) = 0;

  // Closes the connections: what is under way here and on the peers fails at once, and so does everything later.
  virtual void abort() noexcept = 0;
};

}  // namespace latentd::mesh
