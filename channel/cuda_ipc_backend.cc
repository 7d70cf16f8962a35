#include "channel/cuda_ipc_backend.h"

#include <string>
#include <utility>
#include <vector>

#include "channel/cuda_pool.h"
#include "channel/pinned_pool.h"
#include "channel/pool_layout.h"
#include "channel/unix_transport.h"

namespace latentd::channel {
namespace {

// What both transports of a device share with shm.
class UnixBackend : public Backend {
 public:
  explicit UnixBackend(const CudaOptions& options) : options_(options) {}

  StatusOr<std::unique_ptr<Listener>> listen(const std::string& address, uint32_t connections) override {
    return listenUnix(address, connections);
  }
  StatusOr<std::unique_ptr<Link>> connect(const std::string& address) override { return connectUnix(address); }
  StatusOr<std::unique_ptr<ControlMemory>> createControl(const std::string& name, uint64_t bytes) override {
    return createShmControl(name, bytes);
  }
  StatusOr<std::unique_ptr<ControlMemory>> importControl(const std::string&, std::vector<UniqueFd> fds,
                                                         uint64_t bytes) override {
    return importShmControl(std::move(fds), bytes);
  }

 protected:
  const CudaOptions options_;
};

class CudaIpcBackend final : public UnixBackend {
 public:
  using UnixBackend::UnixBackend;
  std::string_view transport() const override { return "cuda_ipc"; }
  bool asynchronous() const override { return true; }

  StatusOr<std::unique_ptr<ExportedPool>> createPool(const std::string&, const PoolLayout& layout) override {
    LATENTD_RETURN_IF_ERROR(checkSlotsFit(layout));
    return makeCudaPool(layout, options_);
  }
  StatusOr<std::shared_ptr<ImportedPool>> importPool(const std::string& handle, std::vector<UniqueFd>,
                                                     const PoolLayout& layout) override {
    LATENTD_RETURN_IF_ERROR(checkSlotsFit(layout));
    return importCudaPool(handle, layout, options_);
  }
};

class PinnedBackend final : public UnixBackend {
 public:
  using UnixBackend::UnixBackend;
  std::string_view transport() const override { return "pinned"; }
  bool asynchronous() const override { return false; }

  StatusOr<std::unique_ptr<ExportedPool>> createPool(const std::string& name, const PoolLayout& layout) override {
    LATENTD_RETURN_IF_ERROR(checkSlotsFit(layout));
    return makePinnedPool(name, layout, options_);
  }
  StatusOr<std::shared_ptr<ImportedPool>> importPool(const std::string&, std::vector<UniqueFd> fds,
                                                     const PoolLayout& layout) override {
    LATENTD_RETURN_IF_ERROR(checkSlotsFit(layout));
    LATENTD_ASSIGN_OR_RETURN(UniqueFd fd, takeOnly(std::move(fds)));
    return importPinnedPool(std::move(fd), layout, options_);
  }
};

}  // namespace

std::shared_ptr<Backend> makeCudaIpcBackend(const CudaOptions& options) {
  return std::make_shared<CudaIpcBackend>(options);
}

std::shared_ptr<Backend> makePinnedBackend(const CudaOptions& options) {
  return std::make_shared<PinnedBackend>(options);
}

}  // namespace latentd::channel
