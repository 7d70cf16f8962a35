#pragma once

#include <google/protobuf/repeated_field.h>

#include <optional>
#include <string>
#include <vector>

#include "proto/worker.pb.h"
#include "runtime/base/status.h"
#include "runtime/config/topology.h"
#include "runtime/supervisor/worker_id.h"

// What a topology asks of its groups' stages, and whether these can do it. Only the worker knows its stage: what it
// says is checked before it starts (preflight) and again when it has loaded.
namespace latentd::supervisor {

using Methods = google::protobuf::RepeatedPtrField<internal::v1::Method>;

v1::MeshDegrees toProto(const MeshDegrees& degrees);

// What the rank is told to load; without what the ranks of an epoch share (runtime/supervisor/rank_shared.h).
internal::v1::Load loadOf(const config::Topology& topology, GroupIndex group, Rank rank);

// What carries the heads that the ranks of a group with ulysses scatter, and why. ready: of any rank, as all find out
// the same; empty before they have.
struct HeadTransport {
  config::UlyssesTransport transport;
  std::string reason;
};
HeadTransport headTransport(const config::GroupSpec& spec, const internal::v1::Ready& ready);

// Whether the method that the group's jobs run is there, and its outputs and frames go where the edges say.
// INVALID_ARGUMENT, with the field "method", names method, output and what to change.
Status checkMethod(const config::Topology& topology, GroupIndex group, const Methods& methods);

// The method that a stage's jobs run. methods: by place of the stage, of any of its groups, each checked.
const internal::v1::Method& methodOf(const config::Topology& topology, const std::vector<const Methods*>& methods,
                                     size_t place);

// Whether the edges bring what each stage's method needs. methods: as above. INVALID_ARGUMENT names stage and input.
struct MissingInput {
  size_t place;
  Status status;
};
std::optional<MissingInput> findMissingInput(const config::Topology& topology,
                                             const std::vector<const Methods*>& methods);

}  // namespace latentd::supervisor
