#pragma once

#include <memory>
#include <vector>

#include <c10/core/Device.h>

#include "mesh/communicator.h"
#include "runtime/base/flight_recorder.h"
#include "runtime/base/status.h"
#include "runtime/base/strong_id.h"

// Ranks tell each other what they are about to do, by messages of one size whatever it is: what would hang, or end the
// process inside the library, becomes INTERNAL naming two ranks and what each does.
namespace latentd::mesh {

// Of a collective: kind, dtype and shape are equal on all ranks. `members` are the ranks in the mesh, `rank` is this
// one's place among them. A collective more, and the host waits for it. Throws what the communicator throws.
Status compareSignatures(Communicator& communicator, const Operation& mine, const std::vector<Rank>& members, int rank,
                         at::Device device, Communicator::Deadline deadline);

// An exchange with a message ahead of each: waiting for it throws CommunicationError where a receive is not of the
// dtype, or not as long, as what its peer sends. Submission waits for nothing, as in an exchange that compares nothing:
// ranks may submit what they give before or after what they get.
std::unique_ptr<Communicator::Work> exchangeCompared(Communicator& communicator, const std::vector<PeerTensor>& sends,
                                                     const std::vector<PeerTensor>& receives,
                                                     const std::vector<Rank>& members, int rank,
                                                     Communicator::Deadline deadline);

}  // namespace latentd::mesh
