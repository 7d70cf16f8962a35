#include "channel/cuda_ipc_backend.h"
#include "channel/shm_backend.h"
#include "channel/unix_transport.h"
#include "tests/channel/channel_contract.h"
#include "tests/channel/cuda/import_process.h"
#include "tests/support/catch.h"

// The contract on a GPU. The suite's tensors are the host's: fills copy them to the device and reads copy them back.
namespace latentd::channel::testing {
namespace {

constexpr cuda::DeviceIndex kDevice{0};

std::string socketOf(const TempDir& dir, uint32_t rank) { return dir.file("p" + std::to_string(rank) + ".sock"); }

// An edge between a device and a CPU: pools by one backend, their imports by another.
class MixedBackend final : public UnixBackend {
 public:
  MixedBackend(std::shared_ptr<Backend> producer, std::shared_ptr<Backend> consumer)
      : producer_(std::move(producer)), consumer_(std::move(consumer)) {}

  std::string_view transport() const override { return producer_->transport(); }
  bool asynchronous() const override { return producer_->asynchronous(); }
  StatusOr<std::unique_ptr<ExportedPool>> createPool(const std::string& name, const PoolLayout& layout) override {
    return producer_->createPool(name, layout);
  }
  StatusOr<std::shared_ptr<ImportedPool>> importPool(const std::string& handle, std::vector<UniqueFd> fds,
                                                     const PoolLayout& layout) override {
    return consumer_->importPool(handle, std::move(fds), layout);
  }

 private:
  const std::shared_ptr<Backend> producer_;
  const std::shared_ptr<Backend> consumer_;
};

}  // namespace

TEST_CASE("channel: the contract holds over CUDA IPC", "[channel][contract][cuda]") {
  const auto stream = cuda::Stream::create(kDevice);
  REQUIRE(stream.status().ToString() == "OK");
  const ContractBackend cuda_ipc{"cuda_ipc", importElsewhere(makeCudaIpcBackend({stream->view()})), socketOf};
  runContract(cuda_ipc);
}

TEST_CASE("channel: the contract holds from a device to the CPU", "[channel][contract][cuda]") {
  const auto stream = cuda::Stream::create(kDevice);
  REQUIRE(stream.status().ToString() == "OK");
  const auto backend = std::make_shared<MixedBackend>(makePinnedBackend({stream->view()}), makeShmBackend());
  runContract({"pinned to shm", backend, socketOf});
}

TEST_CASE("channel: the contract holds between devices that are no peers", "[channel][contract][cuda]") {
  const auto stream = cuda::Stream::create(kDevice);
  REQUIRE(stream.status().ToString() == "OK");
  ContractBackend pinned{"pinned", makePinnedBackend({stream->view()}), socketOf};
  pinned.lends = false;
  runContract(pinned);
}

TEST_CASE("channel: the contract holds from the CPU to a device", "[channel][contract][cuda]") {
  const auto stream = cuda::Stream::create(kDevice);
  REQUIRE(stream.status().ToString() == "OK");
  const auto backend = std::make_shared<MixedBackend>(makeShmBackend(), makePinnedBackend({stream->view()}));
  ContractBackend mixed{"shm to pinned", backend, socketOf};
  mixed.lends = false;
  runContract(mixed);
}

}  // namespace latentd::channel::testing
