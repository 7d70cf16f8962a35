#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "mesh/communicator.h"
#include "mesh/deadline_watch.h"
#include "mesh/mesh_end.h"
#include "runtime/base/flight_recorder.h"
#include "runtime/base/status.h"
#include "runtime/base/strong_id.h"

namespace latentd::mesh {

// An operation that was submitted. Move-only; its tensors are kept until it ends. Thread: that of its submission.
// Outlived by the process group.
class Pending {
 public:
  class Work;
  Pending();  // nothing to wait for
  explicit Pending(std::unique_ptr<Work> work);
  Pending(Pending&&) noexcept;
  Pending& operator=(Pending&&) noexcept;
  // An operation that nobody waited for is waited for here, its failure swallowed: its buffers may go afterwards.
  ~Pending();

  // Afterwards the results may be used: on a CUDA device, by the current stream. Throws CommunicationError. Once.
  void wait();

 private:
  std::unique_ptr<Work> work_;
};

// What the process groups of one rank have in common. Owner: the Mesh; outlives them.
struct GroupContext {
  Rank rank;  // in the mesh
  at::Device device = at::kCPU;
  std::chrono::milliseconds timeout{};
  MeshEnd* end = nullptr;
  DeadlineWatch* watch = nullptr;      // null: waiting takes no time on the host
  FlightRecorder* recorder = nullptr;  // null: none
  const uint64_t* run = nullptr;       // of the command under way, see Mesh::beginRun(); null: none
  // Ranks tell each other what they are about to do, and compare: a message more for each operation.
  bool verify = false;
};

// Ranks that communicate, over c10d: NCCL, or Gloo where they share a GPU or are on CPUs. All ranks submit the same
// operations in the same order; exchange() concerns only the ranks that send or receive in it.
// Tensors are contiguous and of the mesh's device; none changes until its operation was waited for.
// A group of one rank has no communicator: its operations copy, or do nothing.
// Owner: a Mesh. Thread: one at a time. States: open -> ended. Failure: throws CommunicationError; submitting and
// waiting take no longer than the time-out each, however long a rank computes in between; after one operation failed,
// and after Mesh::abort() on any rank, every operation throws the first cause. An argument that no rank could mean is
// INVALID_ARGUMENT, and ends nothing.
class ProcessGroup {
 public:
  // Of a rank that is alone.
  ProcessGroup();
  // `members`: their ranks in the mesh, by their rank in this group.
  ProcessGroup(std::string name, std::vector<Rank> members, std::unique_ptr<Communicator> communicator,
               const GroupContext& context);
  ProcessGroup(ProcessGroup&&) noexcept;
  ProcessGroup& operator=(ProcessGroup&&) noexcept;
  ~ProcessGroup();

  const std::string& name() const;  // "ulysses"
  int rank() const;                 // inside this group
  int size() const;
  // Their ranks in the mesh, by their rank in here; none for one that is alone.
  const std::vector<Rank>& members() const;
  // Of the tensors that it carries. Of several ranks.
  at::Device device() const;
  std::chrono::milliseconds timeout() const;

  // output: [size * D0, ...] for input [D0, ...], rank-major. Gives (size - 1) * bytes of the input.
  Pending allGather(at::Tensor output, at::Tensor input);
  // In place. Gives 2 * (size - 1) / size * bytes.
  Pending allReduceSum(at::Tensor tensor);
  // Block r of the first dimension of input goes to rank r; block r of output came from rank r. Equal blocks.
  // Gives (size - 1) / size * bytes.
  Pending allToAll(at::Tensor output, at::Tensor input);
  // The root gives (size - 1) * bytes.
  Pending broadcast(at::Tensor tensor, int root);
  // All sends and receives of one batch are submitted before any is waited for. Between two ranks they match by order;
  // both give the same number of bytes. Gives the bytes of the sends.
  Pending exchange(std::vector<PeerTensor> sends, std::vector<PeerTensor> receives);

  // An operation that something else than the communicator carries, and that is numbered, recorded, compared and
  // bounded as a collective is. `given` is what this rank gives, `bytes` of it to others; what `start` returns is
  // waited for. Of several ranks.
  using Carrier = std::function<std::unique_ptr<Communicator::Work>()>;
  Pending carry(const char* kind, const at::Tensor& given, uint64_t bytes, const Carrier& start);

  // Bytes that this rank has given to others since the start, by the formulas above: what its operations must move,
  // whatever way the library takes.
  uint64_t bytesSent() const;
  // Operations so far.
  uint64_t submitted() const;

  // Closes the connections. Thread: any.
  void abort() noexcept;
  // Ends the mesh, for something that carry() started and nobody waits for on the host. Thread: any.
  void fail(const Status& cause) noexcept;

 private:
  friend class Pending;
  struct State;

  std::unique_ptr<State> state_;  // null: alone
};

}  // namespace latentd::mesh
