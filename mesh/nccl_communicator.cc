#include <atomic>
#include <utility>

#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "mesh/communicator_source.h"

namespace latentd::mesh {
namespace {

using C10dWork = c10::intrusive_ptr<c10d::Work>;
using std::chrono::milliseconds;

// NCCL runs on streams of its own, ordered after the current one at submission; wait() orders the current one after it
// and returns at once. What does not end in time is found by c10d's watchdog thread, which ends this process: results
// of an operation that failed on the device must not be used, and nobody would wait on the host to be told.
class NcclWork final : public Communicator::Work {
 public:
  explicit NcclWork(C10dWork work) : work_(std::move(work)) {}
  void wait() override { work_->wait(); }

 private:
  C10dWork work_;
};

class NcclCommunicator final : public Communicator {
 public:
  explicit NcclCommunicator(c10::intrusive_ptr<c10d::ProcessGroupNCCL> group) : group_(std::move(group)) {}
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  ~NcclCommunicator() override {
    if (aborted_) return;
    try {
      group_->shutdown();
    } catch (const std::exception&) {
      abort();  // a peer failed meanwhile: nothing to flush
    }
  }

  std::unique_ptr<Work> allGather(at::Tensor output, at::Tensor input, Deadline) override {
    return single(group_->_allgather_base(output, input));
  }

  std::unique_ptr<Work> allReduceSum(at::Tensor tensor, Deadline) override {
    std::vector<at::Tensor> tensors{std::move(tensor)};
    return single(group_->allreduce(tensors));
  }

  std::unique_ptr<Work> allToAll(at::Tensor output, at::Tensor input, Deadline) override {
    std::vector<int64_t> equal_blocks;
    return single(group_->alltoall_base(output, input, equal_blocks, equal_blocks));
  }

  std::unique_ptr<Work> broadcast(at::Tensor tensor, int root, Deadline) override {
    std::vector<at::Tensor> tensors{std::move(tensor)};
    c10d::BroadcastOptions options;
    options.rootRank = root;
    return single(group_->broadcast(tensors, options));
  }

  // One grouped launch: NCCL would otherwise wait for the first part before it starts the second.
  std::unique_ptr<Work> exchange(std::vector<PeerTensor> sends, std::vector<PeerTensor> receives, Deadline) override {
    group_->startCoalescing();
    for (const PeerTensor& send : sends) {
      std::vector<at::Tensor> tensors{send.tensor};
      group_->send(tensors, send.peer, /*tag=*/0);
    }
    for (const PeerTensor& receive : receives) {
      std::vector<at::Tensor> tensors{receive.tensor};
      group_->recv(tensors, receive.peer, /*tag=*/0);
    }
    return single(group_->endCoalescing());
  }

  void abort() noexcept override {
    aborted_ = true;
    try {
      group_->abort();
    } catch (const std::exception&) {
      // The process is recycled after an abort: there is nobody to tell.
    }
  }

 private:
  static std::unique_ptr<Work> single(C10dWork work) { return std::make_unique<NcclWork>(std::move(work)); }

  c10::intrusive_ptr<c10d::ProcessGroupNCCL> group_;
  std::atomic<bool> aborted_ = false;
};

class NcclSource final : public CommunicatorSource {
 public:
  NcclSource(const std::string& rendezvous_file, at::Device device, milliseconds operation_timeout)
      : store_(c10::make_intrusive<c10d::FileStore>(rendezvous_file, /*numWorkers=*/-1)),
        device_(device),
        operation_timeout_(operation_timeout) {}

  std::unique_ptr<Communicator> connect(const std::string& name, int rank, int size, milliseconds timeout) override {
    store_->setTimeout(timeout);
    auto options = c10d::ProcessGroupNCCL::Options::create();
    options->timeout = operation_timeout_;
    auto group = c10::make_intrusive<c10d::ProcessGroupNCCL>(c10::make_intrusive<c10d::PrefixStore>(name, store_), rank,
                                                             size, options);
    group->eagerConnectSingleDevice(device_);  // not inside the first operation, whose deadline is shorter
    return std::make_unique<NcclCommunicator>(std::move(group));
  }

 private:
  c10::intrusive_ptr<c10d::FileStore> store_;
  at::Device device_;
  milliseconds operation_timeout_;
};

}  // namespace

std::unique_ptr<CommunicatorSource> makeNcclSource(const std::string& rendezvous_file, at::Device device,
                                                   milliseconds operation_timeout) {
  return std::make_unique<NcclSource>(rendezvous_file, device, operation_timeout);
}

}  // namespace latentd::mesh
