#pragma once

#include "channel/channel.h"
#include "proto/worker.pb.h"
#include "runtime/base/status.h"
#include "stages/stage.h"

// Between the wire's messages and what the worker's parts use.
namespace latentd::worker {

// Text that is not ASCII is escaped: a message may quote any bytes, and a string field takes only UTF-8.
v1::StatusProto toProto(const Status& status);
Status fromProto(const v1::StatusProto& proto);
channel::ChannelSpec fromProto(const internal::v1::ChannelSpec& proto);
stages::SamplingParameters fromProto(const v1::JobParameters& proto);
v1::ModelLimits toProto(const stages::ModelLimits& limits);
internal::v1::Method toProto(const stages::MethodSpec& method);
// What the supervisor sees of an artifact.
internal::v1::TensorRef describe(const internal::v1::ArtifactRef& artifact, const stages::TensorTree& tree);
// A dictionary of scalars and strings as a JSON object. INVALID_ARGUMENT for tensors, or beyond 64 KiB.
StatusOr<std::string> smallResult(const stages::TensorTree& tree);

}  // namespace latentd::worker
