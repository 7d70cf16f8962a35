#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include <c10/core/Device.h>

#include "mesh/device_mesh.h"
#include "mesh/head_scatter.h"
#include "mesh/process_group.h"
#include "runtime/base/flight_recorder.h"
#include "runtime/base/status.h"
#include "runtime/base/strong_id.h"

namespace latentd::mesh {

// What carries a group's collectives.
enum class CommunicationBackend {
  kGloo,  // CPUs, or ranks that share a GPU (CUDA tensors staged through pinned host memory)
  kNccl,  // one GPU a rank
};
std::string_view toString(CommunicationBackend backend);  // "gloo", "nccl"

// One rank's view of its group: where it is, and a process group for each dimension.
// Owner: the worker. Thread: made on one thread; operations from the executor's; abort() from any.
// States: open -> aborted. Failure: make() within its time-out; see ProcessGroup.
class Mesh {
 public:
  struct Options {
    MeshDegrees degrees;
    Rank rank;
    at::Device device = at::kCPU;
    CommunicationBackend backend = CommunicationBackend::kGloo;
    ScatterTransport ulysses = ScatterTransport::kC10d;
    std::string rendezvous_file;  // of c10d's FileStore, in a private directory; one for each epoch of the group
    std::chrono::milliseconds timeout{};     // of the rendezvous and of each operation
    std::optional<FlightRecorder> recorder;  // made for this epoch
                                             // See GroupContext.
#ifdef LATENTD_DEBUG_CHECKS
    bool verify = true;
#else
    bool verify = false;
#endif
  };
  static StatusOr<std::unique_ptr<Mesh>> make(Options options);
  // A group of one rank: no process group, no store, no thread.
  Mesh();
  Mesh(const Mesh&) = delete;
  Mesh& operator=(const Mesh&) = delete;
  ~Mesh();

  const DeviceMesh& shape() const { return shape_; }
  Rank rank() const { return rank_; }
  bool alone() const { return shape_.worldSize() == 1; }
  uint32_t coordinate(MeshDim dim) const { return shape_.coordinate(rank_, dim); }
  uint32_t degree(MeshDim dim) const { return shape_.degree(dim); }

  // The ranks that differ from this one in `dim` alone.
  ProcessGroup& group(MeshDim dim);
  // Ring and ulysses together, by sequenceCoordinate().
  ProcessGroup& sequence();
  ProcessGroup& world();
  // Of the ulysses group.
  HeadScatter& headScatter();

  // Every rank says before each command which one it is, from 1: that one of them is a command behind is found at their
  // next operation, though all do the same in each. The executor's thread.
  void beginRun(uint64_t number);
  // Ends every operation under way and to come, on this rank and, through a file and closed connections, on the
  // others, with the first cause that any of them gave. The group cannot be used again.
  void abort(const Status& cause);
  // Operations so far: a rank that fails after some may leave others in one.
  uint64_t submitted() const;
  bool used() const { return submitted() > 0; }

 private:
  struct State;
  Mesh(const DeviceMesh& shape, Rank rank);

  DeviceMesh shape_;
  Rank rank_;
  std::unique_ptr<State> state_;
};

}  // namespace latentd::mesh
