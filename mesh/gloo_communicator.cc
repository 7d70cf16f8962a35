#include <limits>
#include <utility>

#include <ATen/ops/empty.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "mesh/c10d_communicator.h"
#include "mesh/communicator_source.h"

namespace latentd::mesh {
namespace {

using std::chrono::milliseconds;

constexpr char kLoopback[] = "127.0.0.1";
// So many collectives of one group progress at once: Q, K and V.
constexpr int kThreads = 3;
// Gloo's own time-outs close the connections before anybody could say why: ProcessGroup's deadlines always come first.
// What nobody waits for holds nothing up, however long a rank computes before it does.
constexpr std::chrono::hours kGlooTimeout{24};
// Of a message that nobody sends.
constexpr int kWatchTag = std::numeric_limits<int>::max();

// A message meets a receive of its own size only: Gloo ends the process where one is larger than its receive.
int tagOf(const at::Tensor& tensor) { return static_cast<int>(tensor.nbytes() % kWatchTag); }

class GlooCommunicator final : public C10dCommunicator {
 public:
  GlooCommunicator(c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo, int rank, int size)
      : C10dCommunicator(std::move(gloo)) {
    for (int peer = 0; peer < size; ++peer) {
      if (peer == rank) continue;
      std::vector<at::Tensor> nothing{at::empty({1}, at::kByte)};
      watches_.push_back(group().recv(nothing, peer, kWatchTag));
    }
  }

  std::unique_ptr<Work> exchange(std::vector<PeerTensor> sends, std::vector<PeerTensor> receives, Deadline) override {
    std::vector<C10dWork> parts;
    for (const PeerTensor& receive : receives) {
      std::vector<at::Tensor> tensors{receive.tensor};
      parts.push_back(group().recv(tensors, receive.peer, tagOf(receive.tensor)));
    }
    for (const PeerTensor& send : sends) {
      std::vector<at::Tensor> tensors{send.tensor};
      parts.push_back(group().send(tensors, send.peer, tagOf(send.tensor)));
    }
    return started(std::move(parts));
  }

  // Gloo closes all connections of a group when a receive times out, and has no other way to be told so that frees what
  // waits here too. A watch whose peer is gone fails at once and closes nothing, hence one for each.
  void abort() noexcept override {
    for (const C10dWork& watch : watches_) {
      try {
        watch->wait(milliseconds(1));
      } catch (const std::exception&) {
      }
    }
  }

 private:
  std::vector<C10dWork> watches_;  // they go before the group: their buffers are of its connections
};

class GlooSource final : public CommunicatorSource {
 public:
  explicit GlooSource(const std::string& rendezvous_file)
      : store_(c10::make_intrusive<c10d::FileStore>(rendezvous_file, /*numWorkers=*/-1)),
        device_(c10d::ProcessGroupGloo::createDeviceForHostname(kLoopback, /*lazyInit=*/false)) {}

  std::unique_ptr<Communicator> connect(const std::string& name, int rank, int size, milliseconds timeout) override {
    store_->setTimeout(timeout);
    auto options = c10d::ProcessGroupGloo::Options::create(timeout);
    options->devices = {device_};
    options->threads = kThreads;
    auto group = c10::make_intrusive<c10d::ProcessGroupGloo>(c10::make_intrusive<c10d::PrefixStore>(name, store_), rank,
                                                             size, options);
    group->setTimeout(kGlooTimeout);
    return std::make_unique<GlooCommunicator>(std::move(group), rank, size);
  }

 private:
  c10::intrusive_ptr<c10d::FileStore> store_;
  std::shared_ptr<gloo::transport::Device> device_;  // owners: this, and the groups' contexts inside Gloo
};

}  // namespace

std::unique_ptr<CommunicatorSource> makeGlooSource(const std::string& rendezvous_file) {
  return std::make_unique<GlooSource>(rendezvous_file);
}

}  // namespace latentd::mesh
