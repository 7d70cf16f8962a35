#include "mesh/shared_regions.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <type_traits>
#include <utility>

#include "mesh/agreement.h"
#include "runtime/base/unique_fd.h"

namespace latentd::mesh {
namespace {

// Where a rank's region is.
struct Place {
  int32_t process = 0;
  int32_t descriptor = -1;
  uint64_t bytes = 0;
};
static_assert(sizeof(Place) <= sizeof(Token) && std::is_trivially_copyable_v<Place>);

Token tokenOf(const ShmRegion& region, uint64_t bytes) {
  const Place place{::getpid(), region.fd(), bytes};
  Token token{};
  std::memcpy(token.data(), &place, sizeof(place));
  return token;
}

// Through /proc: no name in a folder, which a killed rank would leave behind, and no socket to each peer.
StatusOr<ShmRegion> mapRegion(const Token& token, uint64_t bytes) {
  Place place;
  std::memcpy(&place, token.data(), sizeof(place));
  if (place.bytes != bytes) {
    return absl::InvalidArgumentError("a peer shares " + std::to_string(place.bytes) + " bytes, this rank " +
                                      std::to_string(bytes));
  }
  const std::string path = "/proc/" + std::to_string(place.process) + "/fd/" + std::to_string(place.descriptor);
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!fd.valid()) return errnoStatus(errno, "opening " + path);
  return ShmRegion::map(std::move(fd), bytes);
}

}  // namespace

StatusOr<std::vector<ShmRegion>> shareRegions(ProcessGroup& group, const std::string& name, uint64_t bytes,
                                              const std::function<void(const ShmRegion&)>& fill) {
  StatusOr<ShmRegion> own = ShmRegion::create(name, bytes);
  if (own.ok()) fill(*own);
  LATENTD_ASSIGN_OR_RETURN(const std::vector<Token> tokens,
                           exchangeTokens(group, own.ok() ? StatusOr<Token>(tokenOf(*own, bytes)) : own.status()));
  std::vector<ShmRegion> regions(tokens.size());
  Status mapped;
  for (size_t rank = 0; rank < tokens.size() && mapped.ok(); ++rank) {
    if (static_cast<int>(rank) == group.rank()) {
      regions[rank] = *std::move(own);
      continue;
    }
    StatusOr<ShmRegion> region = mapRegion(tokens[rank], bytes);
    mapped = region.status();
    if (region.ok()) regions[rank] = *std::move(region);
  }
  LATENTD_RETURN_IF_ERROR(agree(group, mapped));
  return regions;
}

}  // namespace latentd::mesh
