#include "runtime/worker/stage_run.h"

#include <algorithm>
#include <utility>

#include "runtime/base/log.h"
#include "runtime/worker/proto_convert.h"
#include "runtime/worker/tensor_convert.h"
#include "stages/token_video.h"

namespace latentd::worker {
namespace {

using internal::v1::ArtifactRef;
using internal::v1::RunStage;
using internal::v1::WorkerEvent;
using stages::MethodSpec;
using stages::TensorTree;

// Label of latentd_slots_discarded_total.
std::string_view discardReason(const Status& status) {
  return status.code() == absl::StatusCode::kCancelled ? "cancelled" : "failed";
}

void discardInputs(const RunStage& message, int from, const Status& why, ChannelTable& channels) {
  for (int index = from; index < message.inputs_size(); ++index) {
    const ArtifactRef& ref = message.inputs(index);
    const auto consumer = channels.consumer(ref.channel_id());
    if (!consumer.ok()) continue;  // retired: nothing of it is left
    // ALREADY_EXISTS: the failed receive() ended it.
    (*consumer)->discard(SequenceNumber(ref.sequence()), discardReason(why)).IgnoreError();
  }
}

void abortOutputs(const RunStage& message, int from, const Status& why, ChannelTable& channels) {
  for (int index = from; index < message.outputs_size(); ++index) {
    const ArtifactRef& ref = message.outputs(index);
    const auto producer = channels.producer(ref.channel_id());
    if (!producer.ok()) continue;  // retired: no consumer waits
    const Status status = (*producer)->abort(SequenceNumber(ref.sequence()), why);
    if (!status.ok()) getLogger("executor")->debug("aborting {}: {}", ref.sequence(), status.ToString());
  }
}

WorkerEvent failedEvent(const RunStage& message, const Status& status) {
  WorkerEvent event;
  event.mutable_failed()->set_job_id(message.job_id());
  event.mutable_failed()->set_method(message.method());
  *event.mutable_failed()->mutable_status() = toProto(status);
  return event;
}

double secondsSince(Clock::TimePoint start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

std::string keysOf(const TensorTree& tree) {
  std::string keys;
  if (const auto* dict = tree.getIf<TensorTree::Dict>()) {
    for (const auto& entry : dict->entries)
      keys += (keys.empty() ? "" : ", ") + entry.first;
  }
  return keys.empty() ? "nothing" : keys;
}

// Of a channel that the command names and that is open no longer: it may have gone before the command came to it.
Status retiredEdge(const std::string& what) {
  return absl::UnavailableError("the edge of an " + what + " was retired: the group on its other side ended");
}

bool hasTensors(const TensorTree& tree) {
  bool found = false;
  tree.forEachLeaf([&](const at::Tensor&) { found = true; });
  return found;
}

}  // namespace

void endUnrun(const StageCommand& command, const Status& status, const RunEnvironment& environment) {
  discardInputs(command.message, 0, status, *environment.channels);
  abortOutputs(command.message, 0, status, *environment.channels);
  environment.descriptors->drop(command.message.frame_ring_id());
  WorkerEvent event = failedEvent(command.message, status);
  SpanRecord(environment.trace_spans_max).finish(command.received, *event.mutable_failed()->mutable_trace());
  environment.channels->fillFigures(*event.mutable_edges());
  environment.events->post(std::move(event));
}

void endMesh(mesh::Mesh& mesh, std::string_view what, const Status& status) {
  // To the others a bad argument would mean that nothing was exchanged (runtime/worker/exception_boundary.cc).
  const absl::StatusCode code = absl::IsInvalidArgument(status) ? absl::StatusCode::kInternal : status.code();
  mesh.abort(makeStatus(
      code, "rank " + std::to_string(mesh.rank().value) + " " + std::string(what) + ": " + messageOf(status)));
}

StageRun::StageRun(const StageCommand& command, stages::Stage& stage, channel::Allocator& allocator,
                   const RunEnvironment& environment)
    : command_(command),
      message_(command.message),
      stage_(stage),
      allocator_(allocator),
      environment_(environment),
      spans_(environment.trace_spans_max) {
  done_.set_job_id(message_.job_id());
  done_.set_method(message_.method());
}

GuardedResult StageRun::execute() {
  WorkerEvent started;
  started.mutable_started()->set_job_id(message_.job_id());
  started.mutable_started()->set_method(message_.method());
  environment_.events->post(std::move(started));

  GuardedResult result = runGuarded([&] {
    LATENTD_ASSIGN_OR_RETURN(const MethodSpec method, findMethod());
    return run(method);
  });
  environment_.stall->rest();
  held_.reset();
  if (result.status.ok()) {
    reportDone();
    return result;
  }
  if (leavesPeers(result.status)) {
    endMesh(*environment_.mesh, "failed", result.status);
    result.clean = false;
  }
  result.of_peer = result.of_peer || stoppedByLead();
  // Ranks that wait for our next step must not wait for ever.
  if (environment_.gate->isLead()) {
    environment_.gate->stop(command_.run, context_ == nullptr ? 0 : context_->nextStep());
  }
  discardInputs(message_, inputs_ended_, result.status, *environment_.channels);
  abortOutputs(message_, outputs_ended_, result.status, *environment_.channels);
  if (ring_ != nullptr) {
    ring_->abort(result.status);
  } else {
    environment_.descriptors->drop(message_.frame_ring_id());
  }
  return result;
}

bool StageRun::leavesPeers(const Status& status) const {
  if (environment_.mesh == nullptr) return false;
  if (method_ == Method::kNotBegun) return othersBegin();
  if (method_ == Method::kReturned || context_->stopped()) return false;
  if (environment_.mesh->submitted() != operations_before_) return true;
  // Nothing was exchanged yet. What is wrong with the job every rank finds; what happened to this one, none.
  return !absl::IsInvalidArgument(status) && !absl::IsFailedPrecondition(status) && !absl::IsNotFound(status) &&
         !absl::IsUnimplemented(status);
}

// The lead fails too, and stops the run, where what failed is not this rank's alone: a producer, say.
bool StageRun::othersBegin() const {
  if (environment_.gate->isLead()) return false;
  const auto decision = awaitLead();
  return !decision.ok() || *decision != StepGate::Decision::kStop;
}

StatusOr<StepGate::Decision> StageRun::awaitLead() const {
  const std::chrono::milliseconds limit(message_.stall_timeout_ms());
  return environment_.gate->waitDecision(command_.run, 0, std::chrono::steady_clock::now() + limit);
}

bool StageRun::stoppedByLead() const {
  return !environment_.gate->isLead() && context_ != nullptr && context_->stopped() &&
         !command_.cancel.stop_requested();
}

StatusOr<MethodSpec> StageRun::findMethod() const {
  std::string known;
  for (MethodSpec& method : stage_.methods()) {
    if (method.name == message_.method()) return std::move(method);
    known += (known.empty() ? "" : ", ") + method.name;
  }
  return absl::NotFoundError("method \"" + message_.method() + "\" is none of: " + known);
}

Status StageRun::run(const MethodSpec& method) {
  LATENTD_RETURN_IF_ERROR(openFrames(method));
  // Before the wait: nothing that needs no input stands between the inputs and the stage.
  const stages::SamplingParameters parameters = fromProto(message_.parameters());
  LATENTD_ASSIGN_OR_RETURN(TensorTree inputs, resolveInputs());
  LATENTD_ASSIGN_OR_RETURN(const TensorTree outputs, compute(method, parameters, std::move(inputs)));
  LATENTD_RETURN_IF_ERROR(checkOutputs(method, outputs));
  LATENTD_RETURN_IF_ERROR(publish(outputs));
  if (ring_ != nullptr) {
    LATENTD_RETURN_IF_ERROR(ring_->finish());
    done_.set_frames(ring_->framesWritten());
  }
  return absl::OkStatus();
}

Status StageRun::openFrames(const MethodSpec& method) {
  if (message_.frame_ring_id() != DescriptorInbox::kNone) {
    RingFrameSink::Options options;
    options.wait_max = std::chrono::milliseconds(message_.stall_timeout_ms());
    options.cancel = command_.cancel.get_token();
    options.deferred = !environment_.alone;
    options.on_frame = [this] { context_->noteProgress(); };
    ring_ = std::make_unique<RingFrameSink>(*environment_.descriptors, message_.frame_ring_id(), std::move(options));
    LATENTD_RETURN_IF_ERROR(ring_->attachIfHere());
  } else if (method.emits_frames && environment_.gate->isLead()) {
    return absl::FailedPreconditionError("method \"" + method.name + "\" emits frames, the command names no ring");
  }
  context_ = std::make_unique<StepContext>(
      StepContext::Command{message_.job_id(), command_.run, std::chrono::milliseconds(message_.stall_timeout_ms()),
                           command_.cancel.get_token(), &spans_, [this] { acknowledgeInputs(); },
                           [this] { announceOutputs(); }},
      *environment_.gate, *environment_.channels, *environment_.events, *environment_.stall, ring_.get(),
      method.emits_frames ? &dropped_ : nullptr);
  return absl::OkStatus();
}

// CANCELLED, and not by this command: either the producer's job was, or the channel was closed under the call.
Status StageRun::explainCancelled(const Status& status, bool still_open, const std::string& what) const {
  return still_open ? status : retiredEdge(what);
}

// ---- inputs -------------------------------------------------------------------------------------------------

StatusOr<channel::HeldArtifact> StageRun::take(const ArtifactRef& ref) {
  const auto open = environment_.channels->consumer(ref.channel_id());
  if (!open.ok()) return retiredEdge("input");
  const std::shared_ptr<channel::Consumer> consumer = *open;
  HandoffSpans spans(spans_, ref);
  channel::WaitOptions wait;
  wait.cancel = command_.cancel.get_token();
  wait.observer = spans_.enabled() ? &spans : nullptr;
  auto taken = consumer->take(SequenceNumber(ref.sequence()), allocator_, wait);
  if (taken.ok() || taken.status().code() != absl::StatusCode::kCancelled) return taken;
  if (!wait.cancel.stop_requested()) {
    const bool still_open = environment_.channels->consumer(ref.channel_id()).ok();
    return explainCancelled(taken.status(), still_open, "input");
  }
  // The lead decides alone. Another rank that was told to cancel asks whether the lead began the run before it was
  // told: then this rank is needed until the lead stops it at a step.
  StepGate& gate = *environment_.gate;
  if (gate.isLead()) {
    gate.stop(command_.run, 0);
    return taken.status();
  }
  LATENTD_ASSIGN_OR_RETURN(const auto decision, awaitLead());
  if (decision == StepGate::Decision::kStop) return taken.status();
  return consumer->take(SequenceNumber(ref.sequence()), allocator_);
}

void StageRun::acknowledgeHeld() {
  if (!held_) return;
  const ArtifactRef& ref = message_.inputs(inputs_ended_ - 1);
  const Clock::TimePoint start = std::chrono::steady_clock::now();
  held_.reset();
  spans_.addHandoff(ref, {channel::HandoffPhase::kAcknowledge, SequenceNumber(ref.sequence()), start,
                          std::chrono::steady_clock::now()});
}

void StageRun::acknowledgeInputs() {
  if (consumed_told_ || message_.inputs_size() == 0) return;
  acknowledgeHeld();
  consumed_told_ = true;
  WorkerEvent consumed;
  consumed.mutable_inputs_consumed()->set_job_id(message_.job_id());
  *consumed.mutable_inputs_consumed()->mutable_refs() = message_.inputs();
  environment_.events->post(std::move(consumed));
}

StatusOr<TensorTree> StageRun::resolveInputs() {
  const Clock::TimePoint start = std::chrono::steady_clock::now();
  TensorTree::Dict merged;
  while (inputs_ended_ < message_.inputs_size()) {
    // No slot of one producer is held while another one is waited for.
    acknowledgeHeld();
    LATENTD_ASSIGN_OR_RETURN(held_, take(message_.inputs(inputs_ended_)));
    ++inputs_ended_;
    LATENTD_ASSIGN_OR_RETURN(TensorTree tree, fromArtifact(held_->tree()));
    auto* dict = tree.getIf<TensorTree::Dict>();
    if (dict == nullptr) return absl::InvalidArgumentError("an input artifact is no dictionary");
    for (auto& entry : dict->entries) {
      const auto same = [&](const auto& other) { return other.first == entry.first; };
      if (std::any_of(merged.entries.begin(), merged.entries.end(), same)) {
        return absl::InvalidArgumentError("two edges bring an input named \"" + entry.first +
                                          "\": the outputs that meet in one method need different names");
      }
      merged.entries.push_back(std::move(entry));
    }
  }
  done_.mutable_timings()->set_input_wait_seconds(secondsSince(start));
  if (message_.inputs_size() > 0) spans_.add(v1::SPAN_KIND_INPUTS, start, std::chrono::steady_clock::now());
  if (!environment_.on_device) acknowledgeInputs();
  return TensorTree(std::move(merged));
}

// ---- the method ---------------------------------------------------------------------------------------------

StatusOr<TensorTree> StageRun::compute(const MethodSpec& method, const stages::SamplingParameters& parameters,
                                       TensorTree inputs) {
  for (const std::string& key : method.inputs) {
    if (inputs.find(key) == nullptr) {
      return absl::InvalidArgumentError("method \"" + method.name + "\" needs input \"" + key + "\", the edges bring " +
                                        keysOf(inputs));
    }
  }
  // Also what stops a command that was cancelled before a method without steps.
  LATENTD_RETURN_IF_ERROR(context_->beginStep(0, 1));
  const Clock::TimePoint start = std::chrono::steady_clock::now();
  context_->noteProgress();
  if (environment_.mesh != nullptr) {
    environment_.mesh->beginRun(command_.run);
    operations_before_ = environment_.mesh->submitted();
  }
  method_ = Method::kRunning;
  auto outputs = stage_.run(method.name, parameters, inputs, *context_);
  acknowledgeInputs();
  if (outputs.ok()) method_ = Method::kReturned;
  environment_.stall->rest();
  done_.mutable_timings()->set_compute_seconds(secondsSince(start));
  spans_.add(v1::SPAN_KIND_STAGE, start, std::chrono::steady_clock::now());
  // A deferred failure of the frames ends the run at the latest here.
  if (outputs.ok() && ring_ != nullptr) LATENTD_RETURN_IF_ERROR(ring_->failure());
  return outputs;
}

Status StageRun::checkOutputs(const MethodSpec& method, const TensorTree& outputs) const {
  if (outputs.getIf<TensorTree::Dict>() == nullptr) {
    return absl::InternalError("method \"" + method.name + "\" returned no dictionary");
  }
  for (const std::string& key : method.outputs) {
    if (outputs.find(key) == nullptr) {
      return absl::InternalError("method \"" + method.name + "\" promised output \"" + key + "\" and returned " +
                                 keysOf(outputs));
    }
  }
  for (const auto& [key, cut] : method.token_outputs) {
    LATENTD_ASSIGN_OR_RETURN(const stages::TokenVideo video, stages::tokenVideoOf(*outputs.find(key), key));
    if (video.cut == cut) continue;
    return absl::InternalError("method \"" + method.name + "\" promised \"" + key + "\" cut along " +
                               std::string(toString(cut)) + " and returned it cut along " +
                               std::string(toString(video.cut)));
  }
  if (message_.outputs_size() == 0 && hasTensors(outputs)) {
    return absl::FailedPreconditionError("method \"" + method.name + "\" returned tensors (" + keysOf(outputs) +
                                         ") and no edge takes them: add an edge, or drop the group");
  }
  return absl::OkStatus();
}

// ---- outputs ------------------------------------------------------------------------------------------------

void StageRun::announceOutputs() {
  for (const ArtifactRef& ref : message_.outputs()) {
    const auto producer = environment_.channels->producer(ref.channel_id());
    if (producer.ok()) (*producer)->announce();
  }
}

Status StageRun::publishOne(const ArtifactRef& ref, const channel::ArtifactTree& artifact) {
  const auto open = environment_.channels->producer(ref.channel_id());
  if (!open.ok()) return retiredEdge("output");
  const std::shared_ptr<channel::Producer> producer = *open;
  HandoffSpans spans(spans_, ref);
  channel::WaitOptions wait;
  wait.cancel = command_.cancel.get_token();
  wait.observer = spans_.enabled() ? &spans : nullptr;
  const Status status = producer->publish(SequenceNumber(ref.sequence()), artifact, wait);
  if (status.code() != absl::StatusCode::kCancelled || wait.cancel.stop_requested()) return status;
  return explainCancelled(status, environment_.channels->producer(ref.channel_id()).ok(), "output");
}

Status StageRun::publish(const TensorTree& outputs) {
  if (message_.outputs_size() == 0) {
    LATENTD_ASSIGN_OR_RETURN(*done_.mutable_small_result(), smallResult(outputs));
    return absl::OkStatus();
  }
  const Clock::TimePoint start = std::chrono::steady_clock::now();
  LATENTD_ASSIGN_OR_RETURN(const channel::ArtifactTree artifact, toArtifact(outputs));
  for (; outputs_ended_ < message_.outputs_size(); ++outputs_ended_) {
    const ArtifactRef& ref = message_.outputs(outputs_ended_);
    LATENTD_RETURN_IF_ERROR(publishOne(ref, artifact));
    *done_.add_outputs() = describe(ref, outputs);
  }
  done_.mutable_timings()->set_publish_seconds(secondsSince(start));
  spans_.add(v1::SPAN_KIND_OUTPUTS, start, std::chrono::steady_clock::now());
  return absl::OkStatus();
}

// ---- reports ------------------------------------------------------------------------------------------------

void StageRun::reportDone() {
  for (const double seconds : context_->stepSeconds())
    done_.mutable_timings()->add_step_seconds(seconds);
  spans_.finish(command_.received, *done_.mutable_trace());
  WorkerEvent event;
  *event.mutable_done() = std::move(done_);
  environment_.channels->fillFigures(*event.mutable_edges());
  environment_.events->post(std::move(event));
}

void StageRun::reportFailed(const GuardedResult& result) {
  WorkerEvent event = failedEvent(message_, result.status);
  event.mutable_failed()->set_step(context_ == nullptr ? 0 : context_->currentStep());
  event.mutable_failed()->set_recycle(!result.clean);
  event.mutable_failed()->set_of_peer(result.of_peer);
  spans_.finish(command_.received, *event.mutable_failed()->mutable_trace());
  environment_.channels->fillFigures(*event.mutable_edges());
  environment_.events->post(std::move(event));
}

}  // namespace latentd::worker
