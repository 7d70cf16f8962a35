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

class DeviceBackend : public UnixBackend {
 public:
  explicit DeviceBackend(const CudaOptions& options) : options_(options) {}

 protected:
  const CudaOptions options_;
};

class CudaIpcBackend final : public DeviceBackend {
 public:
  using DeviceBackend::DeviceBackend;
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

class PinnedBackend final : public DeviceBackend {
 public:
  using DeviceBackend::DeviceBackend;
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
