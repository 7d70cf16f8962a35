#include "mesh/staged_communicator.h"

#include <algorithm>
#include <utility>

#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAStream.h>

#include "mesh/communication_error.h"
#include "runtime/cuda/stream_drain.h"

namespace latentd::mesh {
namespace {

using std::chrono::milliseconds;

// A tensor and its copy in pinned memory, which torch's host allocator keeps until the copies of it are done.
struct Staged {
  at::Tensor device;
  at::Tensor host;
};

Staged makeStaged(at::Tensor device) {
  at::Tensor host = at::empty(device.sizes(), device.options().device(at::kCPU).pinned_memory(true));
  return {std::move(device), std::move(host)};
}

Staged copyToHost(at::Tensor device) {
  Staged staged = makeStaged(std::move(device));
  staged.host.copy_(staged.device, /*non_blocking=*/true);
  return staged;
}

// The host may read what was copied before.
void finishCopies(at::Device device, Communicator::Deadline deadline) {
  const auto left = std::chrono::ceil<milliseconds>(deadline - std::chrono::steady_clock::now());
  const cuda::StreamView stream(c10::cuda::getCurrentCUDAStream(device.index()).stream(),
                                cuda::DeviceIndex(device.index()));
  const Status drained = cuda::drain(stream, std::max(left, milliseconds(0)));
  if (absl::IsDeadlineExceeded(drained)) throw Communicator::TimedOut();
  if (!drained.ok()) throw CommunicationError(drained);
}

class StagedWork final : public Communicator::Work {
 public:
  StagedWork(std::unique_ptr<Work> host, std::vector<Staged> results)
      : host_(std::move(host)), results_(std::move(results)) {}

  void wait() override {
    host_->wait();
    for (const Staged& result : results_)
      result.device.copy_(result.host, /*non_blocking=*/true);
  }

 private:
  std::unique_ptr<Work> host_;
  std::vector<Staged> results_;
};

class StagedCommunicator final : public Communicator {
 public:
  StagedCommunicator(std::unique_ptr<Communicator> host, at::Device device) : host_(std::move(host)), device_(device) {}

  std::unique_ptr<Work> allGather(at::Tensor output, at::Tensor input, Deadline deadline) override {
    const Staged from = copyToHost(std::move(input));
    Staged to = makeStaged(std::move(output));
    finishCopies(device_, deadline);
    std::unique_ptr<Work> host = host_->allGather(to.host, from.host, deadline);
    return started(std::move(host), {std::move(to)});
  }

  std::unique_ptr<Work> allReduceSum(at::Tensor tensor, Deadline deadline) override {
    Staged staged = copyToHost(std::move(tensor));
    finishCopies(device_, deadline);
    std::unique_ptr<Work> host = host_->allReduceSum(staged.host, deadline);
    return started(std::move(host), {std::move(staged)});
  }

  std::unique_ptr<Work> allToAll(at::Tensor output, at::Tensor input, Deadline deadline) override {
    const Staged from = copyToHost(std::move(input));
    Staged to = makeStaged(std::move(output));
    finishCopies(device_, deadline);
    std::unique_ptr<Work> host = host_->allToAll(to.host, from.host, deadline);
    return started(std::move(host), {std::move(to)});
  }

  std::unique_ptr<Work> broadcast(at::Tensor tensor, int root, Deadline deadline) override {
    Staged staged = copyToHost(std::move(tensor));
    finishCopies(device_, deadline);
    std::unique_ptr<Work> host = host_->broadcast(staged.host, root, deadline);
    return started(std::move(host), {std::move(staged)});
  }

  std::unique_ptr<Work> exchange(std::vector<PeerTensor> sends, std::vector<PeerTensor> receives,
                                 Deadline deadline) override {
    for (PeerTensor& send : sends)
      send.tensor = copyToHost(send.tensor).host;
    std::vector<Staged> results;
    for (PeerTensor& receive : receives) {
      results.push_back(makeStaged(receive.tensor));
      receive.tensor = results.back().host;
    }
    finishCopies(device_, deadline);
    return started(host_->exchange(std::move(sends), std::move(receives), deadline), std::move(results));
  }

  void abort() noexcept override { host_->abort(); }

 private:
  static std::unique_ptr<Work> started(std::unique_ptr<Work> host, std::vector<Staged> results) {
    return std::make_unique<StagedWork>(std::move(host), std::move(results));
  }

  std::unique_ptr<Communicator> host_;
  at::Device device_;
};

}  // namespace

std::unique_ptr<Communicator> stageThroughHost(std::unique_ptr<Communicator> host, at::Device device) {
  return std::make_unique<StagedCommunicator>(std::move(host), device);
}

}  // namespace latentd::mesh
