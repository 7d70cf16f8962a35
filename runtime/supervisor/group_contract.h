#pragma once

#include <google/protobuf/repeated_field.h>

#include <optional>
#include <vector>

#include "proto/worker.pb.h"
#include "runtime/base/status.h"
#include "runtime/config/topology.h"
#include "runtime/supervisor/worker_id.h"

// What a topology asks of its groups' stages, and whether these can do it. Only the worker knows its stage: what it
// says is checked before it starts (preflight) and again when it has loaded.
namespace latentd::supervisor {

using Methods = google::protobuf::RepeatedPtrField<internal::v1::Method>;

// What the rank is told to load; without its step gate.
internal::v1::Load loadOf(const config::Topology& topology, GroupIndex group, Rank rank);

// Whether the method that the group's jobs run is there, and its outputs and frames go where the edges say.
// INVALID_ARGUMENT, with the field "method", names method, output and what to change.
Status checkMethod(const config::Topology& topology, GroupIndex group, const Methods& methods);

// Whether the edges bring what each group's method needs. methods: by group, each checked. INVALID_ARGUMENT names group
// and input.
struct MissingInput {
  GroupIndex group;
  Status status;
};
std::optional<MissingInput> findMissingInput(const config::Topology& topology,
                                             const std::vector<const Methods*>& methods);

}  // namespace latentd::supervisor
