#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "mesh/process_group.h"
#include "runtime/base/status.h"

namespace latentd::mesh {

// Memory of each rank that its peers write into, and the turns that they take at it, by rounds (RoundFlags). Ranks on
// CPUs: shared memory, and the host waits. Ranks on GPUs: device memory, and streams wait.
//
//   share(bytes)          all ranks: a region of each
//   beginRound(n)         I read nothing of the rounds before n any more
//   beginCopies(n)        what follows is after all that was submitted, and after all peers' beginRound(n)
//   copy(target, source)  from this rank into a peer's region, or its own
//   finishRound(n)        what follows is after all ranks' copies of round n
//   retire(regions)       all ranks: the regions go
//   close()               nothing of this rank uses any region any more
//
// Owner: a DirectScatter; the process group outlives it. Thread: one; end() from any. States: open -> ended -> closed.
// Failure: share() returns the same on all ranks; the rest throws std::exception, and what fails on a device where no
// host waits ends the mesh (ProcessGroup::fail()).
class ScatterMemory {
 public:
  // For the group's device. The same outcome on all ranks. Throws CommunicationError.
  static StatusOr<std::unique_ptr<ScatterMemory>> make(ProcessGroup& group);
  virtual ~ScatterMemory() = default;

  // By rank, this one's own among them: [bytes] of uint8 on the group's device, aligned to 256 bytes. Views keep a
  // region. The same failure on all ranks, of whichever could not make its own or map another's. Throws
  // CommunicationError.
  virtual StatusOr<std::vector<at::Tensor>> share(uint64_t bytes) = 0;
  // No round is under way. Throws CommunicationError.
  virtual void retire(std::vector<at::Tensor> regions) = 0;

  virtual void beginRound(uint32_t round) = 0;
  // x as copy() takes its slices: itself, or a copy of it where its strides are beyond what the device copies.
  virtual at::Tensor copyable(const at::Tensor& x) const = 0;
  virtual void beginCopies(uint32_t round) = 0;
  // [B, S, H, D] each; D, and H with it, are dense in both.
  virtual void copy(const at::Tensor& target, const at::Tensor& source) = 0;
  virtual void finishRound(uint32_t round) = 0;

  // Whoever waits for a round, here or on a peer, is told.
  virtual void end() noexcept = 0;
  // Bounded in time. `regions`: all that there are.
  virtual void close(std::vector<std::vector<at::Tensor>> regions) noexcept = 0;
};

// The two of them.
StatusOr<std::unique_ptr<ScatterMemory>> makeSharedScatterMemory(ProcessGroup& group);
StatusOr<std::unique_ptr<ScatterMemory>> makeCudaScatterMemory(ProcessGroup& group);

}  // namespace latentd::mesh
