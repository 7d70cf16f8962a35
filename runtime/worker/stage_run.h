#pragma once

#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "channel/channel.h"
#include "mesh/mesh.h"
#include "proto/worker.pb.h"
#include "runtime/base/step_gate.h"
#include "runtime/worker/channel_table.h"
#include "runtime/worker/descriptor_inbox.h"
#include "runtime/worker/event_sink.h"
#include "runtime/worker/exception_boundary.h"
#include "runtime/worker/ring_frame_sink.h"
#include "runtime/worker/run_context.h"
#include "runtime/worker/span_record.h"
#include "runtime/worker/stall_clock.h"
#include "stages/stage.h"

namespace latentd::worker {

// What commands of one worker share. Owner: the executor. Thread: as each part says.
struct RunEnvironment {
  ChannelTable* channels = nullptr;
  EventSink* events = nullptr;
  DescriptorInbox* descriptors = nullptr;
  StepGate* gate = nullptr;
  StallClock* stall = nullptr;
  bool alone = true;             // the group has one rank
  bool on_device = false;        // steps are submitted, not made: inputs are acknowledged once the first one is
  mesh::Mesh* mesh = nullptr;    // null: none
  uint32_t trace_spans_max = 0;  // see SpanRecord
};

// A RunStage command with what the worker adds to it.
struct StageCommand {
  internal::v1::RunStage message;
  uint64_t run = 0;  // its number, see StepGate
  std::stop_source cancel;
  Clock::TimePoint received = std::chrono::steady_clock::now();
};

// Ends a command that will not run: inputs discarded, outputs aborted, StageFailed(status).
void endUnrun(const StageCommand& command, const Status& status, const RunEnvironment& environment);

// Ends the group's mesh, on every rank, with what this one met: "rank 1 failed: ...".
void endMesh(mesh::Mesh& mesh, std::string_view what, const Status& status);

// One command, from its inputs to its StageDone or StageFailed. Whatever happens, by then every input was received or
// discarded and every output published or aborted.
// Owner: the executor, for one execute(). Thread: the executor's. Failure: execute() returns it, and its caller reports
// it once it knows whether the process may run another command.
class StageRun {
 public:
  StageRun(const StageCommand& command, stages::Stage& stage, channel::Allocator& allocator,
           const RunEnvironment& environment);
  // StageDone is sent when it succeeds. After a failure reportFailed() must follow; no memory of the run is held then.
  GuardedResult execute();
  void reportFailed(const GuardedResult& result);

 private:
  // Whether other ranks wait in a collective for this one, or will.
  bool leavesPeers(const Status& status) const;
  // The same of a method that this rank does not begin.
  bool othersBegin() const;
  // Whether the lead begins the run: never kUndecided. DEADLINE_EXCEEDED if it does not say within the stall limit.
  StatusOr<StepGate::Decision> awaitLead() const;
  // It ended because the lead did, and not by a cancel.
  bool stoppedByLead() const;
  Status run(const stages::MethodSpec& method);
  StatusOr<stages::MethodSpec> findMethod() const;
  Status openFrames(const stages::MethodSpec& method);
  StatusOr<channel::HeldArtifact> take(const internal::v1::ArtifactRef& ref);
  void acknowledgeHeld();
  // The last input too, and the supervisor hears of all of them.
  void acknowledgeInputs();
  void announceOutputs();
  Status explainCancelled(const Status& status, bool still_open, const std::string& what) const;
  StatusOr<stages::TensorTree> resolveInputs();
  StatusOr<stages::TensorTree> compute(const stages::MethodSpec& method, const stages::SamplingParameters& parameters,
                                       stages::TensorTree inputs);
  Status checkOutputs(const stages::MethodSpec& method, const stages::TensorTree& outputs) const;
  Status publish(const stages::TensorTree& outputs);
  Status publishOne(const internal::v1::ArtifactRef& ref, const channel::ArtifactTree& artifact);
  void reportDone();

  const StageCommand& command_;
  const internal::v1::RunStage& message_;
  stages::Stage& stage_;
  channel::Allocator& allocator_;
  const RunEnvironment& environment_;
  std::unique_ptr<RingFrameSink> ring_;
  DroppedFrames dropped_;
  std::unique_ptr<StepContext> context_;
  // The last input, acknowledged late where a device waits for the first step: the earlier ones are by the time that
  // another one is waited for.
  std::optional<channel::HeldArtifact> held_;
  int inputs_ended_ = 0;   // of message_.inputs(), in order
  int outputs_ended_ = 0;  // of message_.outputs(), in order
  bool consumed_told_ = false;
  enum class Method { kNotBegun, kRunning, kReturned };
  Method method_ = Method::kNotBegun;  // kReturned: well
  uint64_t operations_before_ = 0;     // of the mesh, before the method
  internal::v1::StageDone done_;
  SpanRecord spans_;
};

}  // namespace latentd::worker
