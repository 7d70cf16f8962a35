#include <atomic>
#include <utility>

#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "mesh/c10d_communicator.h"
#include "mesh/communicator_source.h"

namespace latentd::mesh {
namespace {

using std::chrono::milliseconds;

// NCCL runs on streams of its own, ordered after the current one at submission; a work's wait() orders the current one
// after it and returns at once. What does not end in time is found by c10d's watchdog thread, which ends this process:
// results of an operation that failed on the device must not be used, and nobody would wait on the host to be told.
class NcclCommunicator final : public C10dCommunicator {
 public:
  explicit NcclCommunicator(c10::intrusive_ptr<c10d::ProcessGroupNCCL> nccl) : C10dCommunicator(std::move(nccl)) {}
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  ~NcclCommunicator() override {
    if (aborted_) return;
    try {
      group().shutdown();
    } catch (const std::exception&) {
      abort();  // a peer failed meanwhile: nothing to flush
    }
  }

  // One grouped launch: NCCL would otherwise wait for the first part before it starts the second.
  std::unique_ptr<Work> exchange(std::vector<PeerTensor> sends, std::vector<PeerTensor> receives, Deadline) override {
    group().startCoalescing();
    for (const PeerTensor& send : sends) {
      std::vector<at::Tensor> tensors{send.tensor};
      group().send(tensors, send.peer, /*tag=*/0);
    }
    for (const PeerTensor& receive : receives) {
      std::vector<at::Tensor> tensors{receive.tensor};
      group().recv(tensors, receive.peer, /*tag=*/0);
    }
    return started({group().endCoalescing()});
  }

  void abort() noexcept override {
    aborted_ = true;
    try {
      group().abort();
    } catch (const std::exception&) {
      // The process is recycled after an abort: there is nobody to tell.
    }
  }

 private:
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
