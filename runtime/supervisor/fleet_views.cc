// What the fleet shows of itself.
#include <fmt/format.h>

#include <algorithm>

#include "runtime/base/nanoseconds.h"
#include "runtime/supervisor/fleet.h"
#include "runtime/supervisor/flight_report.h"
#include "runtime/supervisor/group_contract.h"
#include "runtime/supervisor/status_proto.h"

namespace latentd::supervisor {

namespace wire = internal::v1;

namespace {

// Of a GPU; what a worker holds of the CPU is its resident memory.
uint64_t deviceBytes(const WorkerRecord& record) {
  uint64_t bytes = 0;
  for (const wire::DeviceMemory& memory : record.device_memory) {
    const bool counted = memory.kind() == "reserved" || memory.kind() == "pools";
    if (memory.device() != "cpu" && counted) bytes += memory.bytes();
  }
  return bytes;
}

void fillMesh(const config::GroupSpec& spec, const wire::Ready& first_rank, v1::Group& proto) {
  *proto.mutable_degrees() = toProto(spec.parallel);
  if (spec.ranks() == 1) return;
  proto.set_communication(std::string(config::toString(spec.communication)));
  proto.set_communication_reason(spec.communication_reason);
  if (spec.parallel.ulysses == 1) return;
  const HeadTransport heads = headTransport(spec, first_rank);
  proto.set_ulysses_transport(std::string(config::toString(heads.transport)));
  proto.set_ulysses_transport_reason(heads.reason);
}

}  // namespace

void Fleet::fill(v1::Topology& topology, const std::function<bool(GroupIndex)>& is_busy,
                 const PlaceOf& place_of) const {
  for (const auto& group : groups_) {
    v1::Group& proto = *topology.add_groups();
    proto.set_name(group->spec().name);
    proto.set_stage(group->spec().stage);
    proto.set_epoch(group->epoch().value);
    proto.set_threads(group->spec().threads);
    proto.set_restarts(group->restarts());
    if (!group->lastFailure().ok()) *proto.mutable_last_failure() = toProto(group->lastFailure());
    fillMesh(group->spec(), group->workers().at(Rank(0)).ready, proto);
    for (uint32_t rank = 0; rank < group->spec().ranks(); ++rank) {
      const WorkerRecord& record = group->workers().at(Rank(rank));
      v1::Worker& worker = *proto.add_workers();
      worker.set_rank(rank);
      for (const auto& [dimension, index] : place_of(group->spec(), Rank(rank))) {
        v1::MeshCoordinate& coordinate = *worker.add_place();
        coordinate.set_dimension(dimension);
        coordinate.set_index(index);
      }
      worker.set_pid(std::max<pid_t>(launcher_->pid({group->index(), Rank(rank)}), 0));
      worker.set_device(config::toString(group->spec().devices[rank]));
      worker.set_state(toProto(record.phase, is_busy(group->index())));
      worker.set_memory_bytes(record.resident_bytes);
      worker.set_device_memory_bytes(deviceBytes(record));
    }
  }
}

StatusOr<v1::FlightRecords> Fleet::flightRecords(const std::string& name) const {
  v1::FlightRecords records;
  records.set_now_ns(toNanoseconds(clock_.now()));
  bool known = name.empty();
  for (const auto& group : groups_) {
    // The name in the file means every replica.
    if (!name.empty() && name != group->spec().name && name != topology_.stageOf(group->index().value).name) continue;
    known = true;
    if (const FlightRecorder* recorder = group->recorder()) {
      v1::GroupRecord& record = *records.add_groups();
      record.set_group(group->spec().name);
      record.set_epoch(group->epoch().value);
      supervisor::fill(*recorder, records.now_ns(), record);
    }
    if (const v1::GroupRecord* failure = group->failureRecord()) *records.add_groups() = *failure;
  }
  if (!known) {
    return absl::NotFoundError(
        fmt::format("there is no group \"{}\"; groups: {}", name, fmt::join(topology_.stageNames(), ", ")));
  }
  if (!name.empty() && records.groups().empty()) {
    return absl::FailedPreconditionError(
        fmt::format("group \"{}\" has one rank, which exchanges nothing: there is no record", name));
  }
  return records;
}

}  // namespace latentd::supervisor
