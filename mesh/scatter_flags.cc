#include "mesh/scatter_flags.h"

#include <utility>
#include <vector>

#include "mesh/agreement.h"
#include "mesh/shared_regions.h"

namespace latentd::mesh {

StatusOr<RoundFlags> shareFlags(ProcessGroup& group) {
  const uint64_t bytes = RoundFlags::pageBytes(group.members().size());
  LATENTD_ASSIGN_OR_RETURN(std::vector<ShmRegion> pages,
                           shareRegions(group, "latentd-ulysses-flags", bytes, RoundFlags::initialize));
  StatusOr<RoundFlags> flags = RoundFlags::make(static_cast<size_t>(group.rank()), group.members(), std::move(pages));
  LATENTD_RETURN_IF_ERROR(agree(group, flags.status()));
  return flags;
}

}  // namespace latentd::mesh
