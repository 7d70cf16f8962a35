#include "mesh/mesh.h"

#include <algorithm>
#include <array>
#include <exception>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>

#include "mesh/communicator_source.h"
#include "mesh/deadline_watch.h"
#include "mesh/mesh_end.h"
#include "mesh/staged_communicator.h"
#include "runtime/base/check.h"

namespace latentd::mesh {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

Status checkOptions(const Mesh::Options& options, const DeviceMesh& shape) {
  if (options.rank.value >= shape.worldSize()) {
    return absl::InvalidArgumentError("rank " + std::to_string(options.rank.value) + " is none of a mesh of " +
                                      std::to_string(shape.worldSize()) + " ranks");
  }
  if (options.backend == CommunicationBackend::kNccl && !options.device.is_cuda()) {
    return absl::InvalidArgumentError("NCCL connects GPUs, and the device is " + options.device.str() + ": use gloo");
  }
  if (shape.worldSize() > 1 && (options.rendezvous_file.empty() || options.timeout.count() <= 0)) {
    return absl::InvalidArgumentError("a mesh of several ranks needs a rendezvous file and a time-out");
  }
  return absl::OkStatus();
}

}  // namespace

std::string_view toString(CommunicationBackend backend) {
  switch (backend) {
    case CommunicationBackend::kGloo:
      return "gloo";
    case CommunicationBackend::kNccl:
      return "nccl";
  }
  return "?";
}

// Declared in the order of what uses what.
struct Mesh::State {
  ProcessGroup alone;
  uint64_t run = 0;
  std::optional<FlightRecorder> recorder;
  std::optional<MeshEnd> end;  // none: alone
  std::unique_ptr<CommunicatorSource> source;
  std::vector<ProcessGroup> groups;
  std::optional<HeadScatter> scatter;
  std::optional<DeadlineWatch> watch;  // after all that it closes
  // Which of them; groups of the same ranks in the same order are one. Null: `alone`.
  std::array<ProcessGroup*, kMeshDims.size()> of_dim{};
  ProcessGroup* sequence = nullptr;
  ProcessGroup* world = nullptr;

  void connect(const Options& options, const DeviceMesh& shape);
  ProcessGroup* groupOf(const std::string& name, const std::vector<Rank>& members, const Options& options);
};

// The group of these ranks, made unless it exists. Throws what c10d throws.
ProcessGroup* Mesh::State::groupOf(const std::string& name, const std::vector<Rank>& members, const Options& options) {
  if (members.size() == 1) return nullptr;
  for (ProcessGroup& group : groups)
    if (group.members() == members) return &group;
  GroupContext context;
  context.rank = options.rank;
  context.device = options.device;
  context.timeout = options.timeout;
  context.end = &*end;
  context.watch = watch ? &*watch : nullptr;
  context.recorder = recorder ? &*recorder : nullptr;
  context.run = &run;
  context.verify = options.verify;
  const auto rank = static_cast<int>(std::find(members.begin(), members.end(), options.rank) - members.begin());
  const std::string key = name + "/" + std::to_string(members.front().value) + "/";
  auto communicator = source->connect(key, rank, static_cast<int>(members.size()), options.timeout);
  if (options.backend == CommunicationBackend::kGloo && options.device.is_cuda())
    communicator = stageThroughHost(std::move(communicator), options.device);
  groups.emplace_back(name, members, std::move(communicator), context);
  return &groups.back();
}

// Every rank makes its groups in this order.
void Mesh::State::connect(const Options& options, const DeviceMesh& shape) {
  groups.reserve(kMeshDims.size() + 2);  // pointers into it are kept
  for (size_t d = 0; d < kMeshDims.size(); ++d)
    of_dim[d] = groupOf(std::string(toString(kMeshDims[d])), shape.peers(options.rank, kMeshDims[d]), options);
  sequence = groupOf("sequence", shape.sequencePeers(options.rank), options);
  std::vector<Rank> all;
  for (uint32_t rank = 0; rank < shape.worldSize(); ++rank)
    all.emplace_back(rank);
  world = groupOf("world", all, options);
}

Mesh::Mesh() : Mesh(*DeviceMesh::make({}, 1), Rank(0)) {
  state_->scatter.emplace(state_->alone, ScatterTransport::kC10d);
}

Mesh::Mesh(const DeviceMesh& shape, Rank rank) : shape_(shape), rank_(rank), state_(std::make_unique<State>()) {}

Mesh::~Mesh() = default;

StatusOr<std::unique_ptr<Mesh>> Mesh::make(Options options) {
  const uint32_t ranks = options.degrees.product();
  LATENTD_ASSIGN_OR_RETURN(const DeviceMesh shape, DeviceMesh::make(options.degrees, ranks));
  LATENTD_RETURN_IF_ERROR(checkOptions(options, shape));
  if (ranks == 1) return std::make_unique<Mesh>();
  std::unique_ptr<Mesh> mesh(new Mesh(shape, options.rank));
  State& state = *mesh->state_;
  state.recorder = std::move(options.recorder);
  state.end.emplace(options.rendezvous_file + ".cause");
  state.end->onEnd([&groups = state.groups, &scatter = state.scatter] {
    // First: NCCL ends its operations only once the device comes to them.
    if (scatter) scatter->end();
    for (ProcessGroup& group : groups)
      group.abort();
  });
  // NCCL's operations are waited for by streams, and c10d has a watchdog of them.
  if (options.backend == CommunicationBackend::kGloo) state.watch.emplace();
  const auto deadline = steady_clock::now() + options.timeout;
  try {
    state.source = options.backend == CommunicationBackend::kNccl
                       ? makeNcclSource(options.rendezvous_file, options.device, options.timeout)
                       : makeGlooSource(options.rendezvous_file);
    state.connect(options, shape);
  } catch (const std::exception& error) {
    // A peer that had met all others may have ended the mesh already.
    if (const auto cause = state.end->cause()) return *cause;
    const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
    const std::string what = "rank " + std::to_string(options.rank.value) + " of " + std::to_string(ranks) +
                             " did not meet the others at " + options.rendezvous_file + ": " +
                             (torch_error != nullptr ? torch_error->what_without_backtrace() : error.what());
    return steady_clock::now() >= deadline ? absl::DeadlineExceededError(what) : absl::UnavailableError(what);
  }
  state.scatter.emplace(mesh->group(MeshDim::kUlysses), options.ulysses);
  return mesh;
}

ProcessGroup& Mesh::group(MeshDim dim) {
  ProcessGroup* const group = state_->of_dim[static_cast<size_t>(dim)];
  return group == nullptr ? state_->alone : *group;
}

ProcessGroup& Mesh::sequence() { return state_->sequence == nullptr ? state_->alone : *state_->sequence; }

ProcessGroup& Mesh::world() { return state_->world == nullptr ? state_->alone : *state_->world; }

HeadScatter& Mesh::headScatter() { return *state_->scatter; }

void Mesh::beginRun(uint64_t number) { state_->run = number; }

void Mesh::abort(const Status& cause) {
  LATENTD_CHECK(!cause.ok(), "an abort has a cause");
  if (state_->end) (void)state_->end->end(cause);
}

uint64_t Mesh::submitted() const {
  uint64_t operations = 0;
  for (const ProcessGroup& group : state_->groups)
    operations += group.submitted();
  return operations;
}

}  // namespace latentd::mesh
