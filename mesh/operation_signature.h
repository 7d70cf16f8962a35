#pragma once

#include <vector>

#include <c10/core/Device.h>

#include "mesh/communicator.h"
#include "runtime/base/flight_recorder.h"
#include "runtime/base/status.h"
#include "runtime/base/strong_id.h"

// Ranks tell each other what they are about to do, by messages of one size whatever it is: what would hang, or end the
// process inside the library, becomes INTERNAL naming two ranks and what each does. Costs a message and a wait for each
// operation. Throws what the communicator throws.
namespace latentd::mesh {

// Of a collective: kind, dtype and shape are equal on all ranks. `members` are the ranks in the mesh, `rank` is this
// one's place among them.
Status compareSignatures(Communicator& communicator, const Operation& mine, const std::vector<Rank>& members, int rank,
                         at::Device device, Communicator::Deadline deadline);

// Of an exchange: each receive is of the dtype and as long as what its peer sends.
Status compareMessages(Communicator& communicator, const std::vector<PeerTensor>& sends,
                       const std::vector<PeerTensor>& receives, const std::vector<Rank>& members, int rank,
                       Communicator::Deadline deadline);

}  // namespace latentd::mesh
