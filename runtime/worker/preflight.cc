#include "runtime/worker/preflight.h"

#include <google/protobuf/util/json_util.h>

#include <memory>
#include <string>

#include "runtime/base/status_field.h"
#include "runtime/cuda/device.h"
#include "runtime/worker/exception_boundary.h"
#include "runtime/worker/process_memory.h"
#include "runtime/worker/proto_convert.h"
#include "runtime/worker/stage_startup.h"

namespace latentd::worker {
namespace {

namespace wire = internal::v1;

void fillOptions(const stages::Stage& stage, google::protobuf::RepeatedPtrField<wire::StageOption>& options) {
  for (const stages::OptionSpec& option : stage.options()) {
    wire::StageOption& told = *options.Add();
    told.set_name(option.name);
    told.set_valid(option.valid);
    told.set_default_value(option.default_value);
    told.set_meaning(option.meaning);
    told.mutable_matters_with()->Add(option.matters_with.begin(), option.matters_with.end());
    told.mutable_idle_with()->Add(option.idle_with.begin(), option.idle_with.end());
  }
}

Status check(const stages::StageRegistry& registry, const wire::Load& group, wire::GroupFindings& findings) {
  LATENTD_ASSIGN_OR_RETURN(stages::LoadContext context, loadContextOf(group));
  context.check_only = true;
  LATENTD_ASSIGN_OR_RETURN(const std::unique_ptr<stages::Stage> stage, registry.create(group.stage()));
  LATENTD_RETURN_IF_ERROR(stage->load(context));
  fill(*stage, *findings.mutable_ready());
  fillOptions(*stage, *findings.mutable_options());
  return absl::OkStatus();
}

wire::DeviceSurvey surveyDevices() {
  wire::DeviceSurvey survey;
  survey.set_count(cuda::deviceCount());
  survey.set_mps(survey.count() > 0 && cuda::isServedByMps(cuda::DeviceIndex(0)).value_or(false));
  for (uint32_t lower = 0; lower < survey.count(); ++lower) {
    for (uint32_t higher = lower + 1; higher < survey.count(); ++higher) {
      const auto peers = cuda::arePeers(cuda::DeviceIndex(int(lower)), cuda::DeviceIndex(int(higher)));
      if (peers.ok() && *peers) continue;
      wire::DevicePair& pair = *survey.add_not_peers();
      pair.set_lower(lower);
      pair.set_higher(higher);
    }
  }
  return survey;
}

wire::StageDescription describe(const std::string& name, const stages::Stage& stage) {
  wire::StageDescription described;
  described.set_name(name);
  for (const stages::MethodSpec& method : stage.methods())
    *described.add_methods() = toProto(method);
  fillOptions(stage, *described.mutable_options());
  return described;
}

}  // namespace

wire::PreflightResult preflight(const stages::StageRegistry& registry, const wire::PreflightRequest& request) {
  wire::PreflightResult result;
  result.set_process_bytes(residentBytes());
  *result.mutable_devices() = surveyDevices();
  for (const wire::Load& group : request.groups()) {
    wire::GroupFindings& findings = *result.add_groups();
    const Status status = runGuarded([&] { return check(registry, group, findings); }).status;
    if (status.ok()) continue;
    findings.clear_ready();
    *findings.mutable_status() = toProto(status);
    // What has no field of its own came out of the checkpoint.
    findings.set_field(fieldOf(atField(status, "model")));
  }
  return result;
}

Status answerPreflight(const stages::StageRegistry& registry, int request_fd, int result_fd) {
  wire::PreflightRequest request;
  if (!request.ParseFromFileDescriptor(request_fd)) return absl::InvalidArgumentError("the request is not readable");
  if (!preflight(registry, request).SerializeToFileDescriptor(result_fd)) {
    return absl::InternalError("the result cannot be written");
  }
  return absl::OkStatus();
}

StatusOr<std::string> describeStages(const stages::StageRegistry& registry) {
  wire::StageDescriptions descriptions;
  for (const std::string& name : registry.names()) {
    LATENTD_ASSIGN_OR_RETURN(const std::unique_ptr<stages::Stage> stage, registry.create(name));
    *descriptions.add_stages() = describe(name, *stage);
  }
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = true;
  options.preserve_proto_field_names = true;
  std::string text;
  const auto printed = google::protobuf::util::MessageToJsonString(descriptions, &text, options);
  if (!printed.ok()) return absl::InternalError(printed.ToString());
  return text;
}

}  // namespace latentd::worker
