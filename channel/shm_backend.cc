#include "channel/shm_backend.h"

#include <string>
#include <utility>
#include <vector>

#include "channel/host_pool.h"
#include "channel/pool_layout.h"
#include "channel/unix_transport.h"
#include "runtime/base/shm_region.h"

namespace latentd::channel {
namespace {

class ShmBackend final : public UnixBackend {
 public:
  std::string_view transport() const override { return "shm"; }
  bool asynchronous() const override { return false; }

  StatusOr<std::unique_ptr<ExportedPool>> createPool(const std::string& name, const PoolLayout& layout) override {
    LATENTD_RETURN_IF_ERROR(checkSlotsFit(layout));
    LATENTD_ASSIGN_OR_RETURN(ShmRegion created, ShmRegion::create(name, layout.bytes, ShmRegion::Access::kRead));
    const auto region = std::make_shared<const ShmRegion>(std::move(created));
    return makeHostPool({region->data(), region->bytes()}, layout, Handle{{}, {region->fd()}, region});
  }

  StatusOr<std::shared_ptr<ImportedPool>> importPool(const std::string&, std::vector<UniqueFd> fds,
                                                     const PoolLayout& layout) override {
    LATENTD_RETURN_IF_ERROR(checkSlotsFit(layout));
    LATENTD_ASSIGN_OR_RETURN(UniqueFd fd, takeOnly(std::move(fds)));
    LATENTD_ASSIGN_OR_RETURN(ShmRegion mapped, ShmRegion::map(std::move(fd), layout.bytes, ShmRegion::Access::kRead));
    const auto region = std::make_shared<const ShmRegion>(std::move(mapped));
    return importHostPool({region->data(), layout.bytes}, layout, region);
  }
};

}  // namespace

std::shared_ptr<Backend> makeShmBackend() { return std::make_shared<ShmBackend>(); }

}  // namespace latentd::channel
