#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include "mesh/process_group.h"
#include "runtime/base/status.h"

// Whether all ranks of a process group can do something, found out by operations of the group: either all go on, or all
// stop with one reason.
namespace latentd::mesh {

// What a rank tells the others beside that it can: a handle, a place.
using Token = std::array<std::byte, 64>;

// By rank. The first failure of any rank, by rank, naming it; the same on all. Throws CommunicationError.
StatusOr<std::vector<Token>> exchangeTokens(ProcessGroup& group, const StatusOr<Token>& mine);
// The same without a token.
Status agree(ProcessGroup& group, const Status& mine);

}  // namespace latentd::mesh
