#include "runtime/supervisor/group_contract.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "runtime/base/status_field.h"
#include "runtime/config/communication.h"

namespace latentd::supervisor {
namespace {

namespace wire = internal::v1;

const wire::Method* find(const Methods& methods, const std::string& name) {
  const auto found =
      std::find_if(methods.begin(), methods.end(), [&](const wire::Method& method) { return method.name() == name; });
  return found == methods.end() ? nullptr : &*found;
}

std::string quoted(const google::protobuf::RepeatedPtrField<std::string>& names) {
  return fmt::format("\"{}\"", fmt::join(names, "\", \""));
}

}  // namespace

v1::MeshDegrees toProto(const MeshDegrees& degrees) {
  v1::MeshDegrees proto;
  proto.set_cfg(degrees.cfg);
  proto.set_ring(degrees.ring);
  proto.set_ulysses(degrees.ulysses);
  proto.set_spatial(degrees.spatial);
  proto.set_pp(degrees.pp);
  proto.set_tp(degrees.tp);
  return proto;
}

wire::Load loadOf(const config::Topology& topology, GroupIndex group, Rank rank) {
  const config::GroupSpec& spec = topology.groups[group.value];
  wire::Load load;
  load.set_group(spec.name);
  load.set_rank(rank.value);
  load.set_world_size(spec.ranks());
  load.set_stage(spec.stage);
  load.set_model_dir(spec.model_dir);
  load.set_device(config::toString(spec.devices[rank.value]));
  load.set_dtype(static_cast<v1::DType>(spec.dtype));
  load.mutable_stage_options()->insert(spec.options.begin(), spec.options.end());
  load.set_threads(spec.threads);
  load.set_heartbeat_interval_ms(static_cast<uint32_t>(topology.deadlines.heartbeat.count()));
  load.set_device_timeout_ms(static_cast<uint32_t>(topology.deadlines.channel_progress.count()));
  *load.mutable_degrees() = toProto(spec.parallel);
  if (spec.ranks() == 1) return load;
  wire::Communication& communication = *load.mutable_communication();
  communication.set_backend(std::string(config::toString(spec.communication)));
  communication.set_timeout_ms(static_cast<uint32_t>(topology.deadlines.collective.count()));
  communication.set_start_timeout_ms(static_cast<uint32_t>(topology.deadlines.load.count()));
  communication.set_ulysses_transport(std::string(config::toString(spec.ulysses_transport)));
  communication.set_ulysses_required(spec.ulysses_transport_reason == config::kToldCommunication);
  return load;
}

HeadTransport headTransport(const config::GroupSpec& spec, const wire::Ready& ready) {
  if (ready.ulysses_obstacle().empty()) return {spec.ulysses_transport, spec.ulysses_transport_reason};
  // What was possible by the file is not.
  return {config::UlyssesTransport::kC10d, "its ranks cannot share memory: " + ready.ulysses_obstacle()};
}

Status checkMethod(const config::Topology& topology, GroupIndex group, const Methods& methods) {
  const config::GroupSpec& spec = topology.groups[group.value];
  const wire::Method* method = find(methods, spec.method);
  const bool feeds = std::any_of(topology.edges.begin(), topology.edges.end(),
                                 [&](const config::EdgeSpec& edge) { return edge.from == group.value; });
  const bool is_sink = topology.emitsFrames(group.value);
  std::string wrong;
  if (method == nullptr) {
    std::string known;
    for (const wire::Method& candidate : methods)
      known += (known.empty() ? "" : ", ") + candidate.name();
    wrong = fmt::format("it has no method \"{}\"; it has: {}", spec.method, known);
  } else if (!feeds && method->outputs_size() != 0) {
    wrong = fmt::format(
        "method {} returns {}, and no edge takes that: add an edge {{from: {}.{}, to: GROUP.METHOD}}, or end the edges "
        "with a method that emits frames",
        spec.method, quoted(method->outputs()), topology.stageOf(group.value).name, spec.method);
  } else if (method->emits_frames() != is_sink) {
    wrong = fmt::format("method {} {} frames: exactly the last group of the edges emits them", spec.method,
                        is_sink ? "does not emit" : "emits");
  } else if (feeds && method->outputs_size() == 0) {
    wrong = fmt::format("method {} returns nothing, so no edge can start from it", spec.method);
  }
  return wrong.empty() ? absl::OkStatus() : atField(absl::InvalidArgumentError(wrong), "method");
}

const wire::Method& methodOf(const config::Topology& topology, const std::vector<const Methods*>& methods,
                             size_t place) {
  return *find(*methods[place], topology.groups[topology.stages[place].groups.front()].method);
}

std::optional<MissingInput> findMissingInput(const config::Topology& topology,
                                             const std::vector<const Methods*>& methods) {
  for (size_t place = 0; place < topology.stages.size(); ++place) {
    std::vector<std::string> brought;
    for (const config::LinkSpec& link : topology.links) {
      if (link.to != place) continue;
      const auto& outputs = methodOf(topology, methods, link.from).outputs();
      brought.insert(brought.end(), outputs.begin(), outputs.end());
    }
    for (const std::string& input : methodOf(topology, methods, place).inputs()) {
      if (std::find(brought.begin(), brought.end(), input) != brought.end()) continue;
      const std::string why = brought.empty() ? "no edge leads to it; add an edge from a group that returns that"
                                              : fmt::format("its edges bring only: {}", fmt::join(brought, ", "));
      return MissingInput{place, absl::InvalidArgumentError(
                                     fmt::format("{} needs \"{}\": {}", topology.stages[place].name, input, why))};
    }
  }
  return std::nullopt;
}

}  // namespace latentd::supervisor
