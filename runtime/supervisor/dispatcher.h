#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "proto/worker.pb.h"
#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "runtime/config/topology.h"
#include "runtime/media/output.h"
#include "runtime/supervisor/command_sink.h"
#include "runtime/supervisor/edge_ledger.h"
#include "runtime/supervisor/job_run.h"
#include "runtime/supervisor/pipeline_shape.h"
#include "runtime/supervisor/worker_id.h"

namespace latentd::supervisor {

// What the dispatcher asks and tells. Called on the supervisor's loop; only onGroupUnusable may call the dispatcher
// back.
class DispatcherHost {
 public:
  virtual ~DispatcherHost() = default;
  // The best job of the queue, which is running from now on; nothing when none waits.
  virtual std::optional<JobSpec> takeNextJob() = 0;
  // onOutputOpened() follows, and after an OK onOutputDone().
  virtual StatusOr<std::unique_ptr<media::Output>> openOutput(const JobSpec& job) = 0;

  // At once, to a rank.
  virtual void onCommandSent(const JobId& job, WorkerId worker) = 0;
  virtual void onStageStarted(const JobId& job, GroupIndex group) = 0;
  // It has its inputs, which it was started without.
  virtual void onStageComputes(const JobId& job, GroupIndex group) = 0;
  virtual void onStageProgress(const JobId& job, GroupIndex group, uint32_t step, uint32_t steps) = 0;
  // On every rank, without a failure.
  virtual void onStageDone(const JobId& job, GroupIndex group, const internal::v1::StageTimings& timings) = 0;
  // A run of a job failed because of this group. Not of what only follows from a failure elsewhere, nor of a cancel.
  virtual void onStageFailed(const JobId& job, GroupIndex group, const Status& status) = 0;
  // Once a job. A failure is told at once, while its commands may still be winding down; CANCELLED only when no worker
  // holds anything of the job.
  virtual void onJobEnded(const JobId& job, StatusOr<media::OutputResult> result) = 0;
  // Instead of onJobEnded, of a job that may run once more from its start; no worker holds anything of it. Lost: a
  // worker died under it. Displaced: the group that was lost had not begun it, or had finished it.
  virtual void onJobLost(const JobId& job, const Status& cause) = 0;
  virtual void onJobDisplaced(const JobId& job, const Status& cause) = 0;
  // The group does not obey: a command or a discard has not ended in time, or a worker asked to be replaced.
  virtual void onGroupUnusable(GroupIndex group, const Status& cause) = 0;
  // It will not obey any more: a rank met what has become of another, which is told soon or stays unknown.
  virtual void onGroupSuspect(GroupIndex group, const Status& met) = 0;
};

// Moves jobs through the stages as a pipeline. A group's command for a job is sent as soon as all its inputs are
// promised, every edge it feeds has a credit, and the group holds fewer commands than it may: the inputs need not
// exist, the data plane brings them.
//
// Of a stage's replicas a job uses one. It is chosen when the command of its producer is sent, for the promise names
// the edge: the one with the least work before it, of equals the one that was chosen longest ago. Where a job begins,
// and where stages lead to one with several inputs, all are chosen at admission, and every group gets its jobs in the
// order of admission. Elsewhere a job may overtake another one that comes from another replica; a command there is sent
// with its producer's last step, when it is known whose input is there first. On every edge the order of numbers is
// kept.
//
// No two jobs wait for each other's credits. Up to a join all groups send in the order of admission, so of the jobs
// that wait there the first one admitted waits only for jobs whose commands have all been sent. From a join, or from
// the beginning where there is none, the rest is a chain: what waits there has all its inputs promised, and the last
// group of the chain waits for no credit.
//
// A number is promised exactly when its producer's command is sent, and that command's answer means that it ended in
// data or ABORTED. A promise whose consumer's command will never be sent is discarded here. So every credit comes back:
// by consumption, by the consumer's answer, by the discard's answer, or with the channel's end.
//
// While a group has not ended a command that stalled, it may have to be replaced, which would take along whatever
// depends on it: until then nothing is sent there, and no job is admitted unless a replica can take it.
//
// Owner: JobManager. Thread: the supervisor's loop. Pure logic: commands go to a CommandSink, time comes from a Clock,
// the owner calls onTimer() at nextDeadline(), and pump() after what may have freed something.
// States of a job: admitted -> (outcome set) -> released, when no command and no promise of it is left. A failed job's
// outcome is public before its release, a cancelled one's after. A failure that may be the consequence of a death, or
// of what failed further up and told it along the edges, or of what another rank of the group failed with, is kept back
// for kCauseTimeout, and replaced by its cause if that becomes known. Failure: of a job, a rank or a group ends the
// jobs it touches, each once; the rest moves on.
class Dispatcher {
 public:
  // topology, clock, sink and host outlive it.
  Dispatcher(const config::Topology& topology, const Clock& clock, CommandSink& sink, DispatcherHost& host);
  ~Dispatcher();

  // ---- groups and edges come and go
  void edgeOpened(EdgeIndex edge, ChannelId channel);
  void groupReady(GroupIndex group);
  // While it is held no command is sent to it; what it has goes on. Until it is lost, or held no longer.
  void groupHeld(GroupIndex group, bool held) { lanes_[group.value].held = held; }
  // Its edges close with it. A job that it has begun fails with `cause`, or is handed back as lost. One that it holds
  // unbegun, or that has unconsumed artifacts on its edges, had no part in it: it is handed back as displaced. So is
  // what only waits for it, if it has replicas.
  void groupLost(GroupIndex group, const Status& cause);

  // ---- what workers report; whatever is stale or unexpected changes nothing
  void onStarted(WorkerId worker, const internal::v1::StageStarted& event);
  void onInputsConsumed(WorkerId worker, const internal::v1::InputsConsumed& event);
  void onProgress(WorkerId worker, const internal::v1::StepProgress& event);
  void onDone(WorkerId worker, const internal::v1::StageDone& event);
  void onFailed(WorkerId worker, const internal::v1::StageFailed& event);
  // `job`: jobOf() of what was transferred.
  void onTransfer(const JobId& job, WorkerId producer, EdgeIndex edge, const internal::v1::TransferDone& event);
  void onDiscarded(WorkerId worker, const internal::v1::RefsDiscarded& event);
  // Its ring is there, which whoever emits the job's frames gets, or could not be made.
  void onOutputOpened(const JobId& job, const Status& opened);
  void onOutputDone(const JobId& job, StatusOr<media::OutputResult> result);

  // ---- jobs
  // Admits and sends whatever can go.
  void pump();
  // Ends the job with this status (CANCELLED: on demand). False if it is not here or has an outcome already.
  bool end(const JobId& job, const Status& status);
  // Whether the job holds anything in any worker.
  bool holds(const JobId& job) const { return runs_.count(job) != 0; }
  size_t running() const { return runs_.size(); }
  // Whose artifact this is, for figures that come after its release.
  std::optional<JobId> jobOf(EdgeIndex edge, ChannelId channel, SequenceNumber sequence) const;
  // Whether the group runs a command.
  bool isBusy(GroupIndex group) const { return !lanes_[group.value].in_flight.empty(); }
  // Why the stage at this place in the pipeline does not begin with this job, all of whose earlier stages are done.
  v1::WaitReason waitReason(const JobId& job, size_t place) const;
  // Those that hold anything in any worker.
  std::vector<JobId> jobs() const;
  // "running job 12ab, step 3 of 16": what the group's workers do; empty: nothing.
  std::string describeWork(GroupIndex group) const;
  // "stage denoise, step 3 of 16": where the job is.
  std::string describeProgress(const JobId& job) const;

  // ---- time
  Clock::TimePoint nextDeadline() const;
  void onTimer();

 private:
  // A group as jobs see it.
  struct Lane {
    size_t place = 0;  // of its stage in the pipeline
    bool ready = false;
    bool held = false;
    bool stalled = false;           // its first command has stalled and not ended yet
    bool unusable = false;          // it was told so: whatever it holds by then has no part in its loss
    std::vector<EdgeIndex> edges;   // from and to it
    std::deque<JobRun*> waiting;    // those it was chosen for, in order of admission
    std::deque<JobRun*> in_flight;  // in order of sending; the worker runs the first
    Clock::TimePoint head_since;    // since when the first one is first
    uint64_t last_bound = 0;        // when it was chosen last, counted in choices
  };
  struct Discard {
    JobId job;
    GroupIndex reader;
    PromisedArtifact artifact;
    Rank rank;
    Clock::TimePoint deadline;
  };
  struct OutgoingRun {
    size_t place = 0;  // in the pipeline
    WorkerId worker;
    internal::v1::WorkerCommand command;
  };
  using Can = std::function<bool(GroupIndex)>;
  using Takes = std::function<bool(GroupIndex to, const EdgeLedger&)>;

  StageRun& stageOf(JobRun& run, GroupIndex group) const { return run.stages[lanes_[group.value].place]; }
  const StageRun& stageOf(const JobRun& run, GroupIndex group) const { return run.stages[lanes_[group.value].place]; }

  bool hasRoom(const Lane& lane) const;
  EdgeIndex edgeBetween(size_t link, GroupIndex from, GroupIndex to) const;
  const EdgeLedger& ledgerBetween(size_t link, GroupIndex from, GroupIndex to) const;
  // Whether on each link that leaves the group's stage some group takes what it sends.
  bool feeds(GroupIndex group, const Takes& takes) const;
  // Those from which open edges and groups that serve lead to the end, by group index.
  std::vector<bool> groupsWithWayOn() const;
  // Of the groups that can take a job the one with the least to do; nothing if that one cannot take it at once.
  std::optional<GroupIndex> leastLoaded(size_t place, const Can& can, const Can& at_once) const;
  // The same of those at the other end of this link's edges from `group`: open ones, at once where there is a credit.
  std::optional<GroupIndex> consumerOf(GroupIndex group, size_t link, const Can& can) const;
  void bind(JobRun& run, GroupIndex group);
  // Chooses the consumers of what the group will send; false, and none is chosen, while one of them has no credit.
  bool bindConsumers(JobRun& run, GroupIndex group);
  // It can take a command as soon as one comes.
  bool isFree(GroupIndex group) const;
  bool canBegin(GroupIndex group, const std::vector<bool>& has_way) const;
  std::optional<std::vector<GroupIndex>> groupsForNext() const;
  bool admitNext();
  bool inputsPromised(const JobRun& run, size_t place) const;
  bool inputsNear(const JobRun& run, size_t place) const;
  bool isFirstOnItsEdges(const JobRun& run, const Lane& lane) const;
  // The job whose command goes next, if it has its credits; null while none may.
  JobRun* nextOf(const Lane& lane) const;
  bool dispatchNext(GroupIndex group);
  // Sent by sendRuns(), at the latest when pump() returns.
  void makeRunStage(JobRun& run, GroupIndex group);
  void sendRuns();
  v1::WaitReason waitReason(const JobId& job, GroupIndex group) const;

  JobRun* find(const std::string& job);
  // The job's dispatched stage that this rank has not answered; null for anything stale.
  StageRun* openStage(JobRun* run, WorkerId worker);
  void answer(JobRun& run, WorkerId worker, const Status& status, const internal::v1::StageTimings& timings);
  void stageEnded(JobRun& run, GroupIndex group);
  void leaveLane(JobRun& run, GroupIndex group);
  // The rank holds the artifact no more; nothing if its channel is gone.
  void settle(const PromisedArtifact& artifact, Rank rank);
  // How sure it is that a failure is the cause and not the consequence of what happened elsewhere.
  enum class Certainty { kCause, kPerhapsConsequence };
  Certainty certaintyOf(const JobRun& run) const;
  // The group at this place in the pipeline, or behind all of them the output, has failed.
  // of_peer: a rank of it met the failure of another, whose own is nearer the cause.
  void failAt(JobRun& run, size_t place, const Status& status, bool of_peer = false);
  void reportIfCertain(JobRun& run);
  void endRun(JobRun& run, const Status& status, Certainty certainty);
  std::chrono::milliseconds stallOf(const JobRun& run, GroupIndex group) const;
  void report(JobRun& run);
  // Its outcome is the loss of a group.
  void loseRun(JobRun& run, GroupIndex group, const Status& status);
  // What becomes of it then.
  JobRun::Return returnAfter(const JobRun& run, GroupIndex lost) const;
  void cancelCommands(JobRun& run);
  void discardPromises(JobRun& run);
  void maybeSucceed(JobRun& run);
  // Whether all that can still be told of its hand-offs was.
  bool figuresTold(const JobRun& run) const;
  void maybeRelease(JobRun& run);
  bool holdsNothing(const JobRun& run) const;
  bool isOutstanding(const PromisedArtifact& artifact) const;
  bool artifactsLost(const JobRun& run, const std::vector<EdgeIndex>& edges) const;
  std::optional<Clock::TimePoint> headDeadline(const Lane& lane, GroupIndex group) const;
  void reportDue(Clock::TimePoint now);
  void endWithoutOutput(Clock::TimePoint now);
  void headOverdue(GroupIndex group);
  void giveUp(GroupIndex group, const Status& cause);
  // How long a command that was cancelled may take to end before its group is replaced.
  std::chrono::milliseconds endLimit(const JobRun& run, GroupIndex group) const;
  std::string describeStage(const JobRun& run, GroupIndex group) const;

  const config::Topology& topology_;
  const Clock& clock_;
  CommandSink& sink_;
  DispatcherHost& host_;
  const std::vector<StageShape> shapes_;
  std::vector<Lane> lanes_;          // by group index
  std::vector<EdgeLedger> ledgers_;  // by edge index
  std::unordered_map<JobId, std::unique_ptr<JobRun>> runs_;
  std::vector<OutgoingRun> runs_to_send_;  // each worker's in order; empty outside of pump()
  std::map<uint64_t, Discard> discards_;   // by request id
  uint64_t next_discard_ = 1;
  uint64_t admissions_ = 0;
  uint64_t bindings_ = 0;
};

}  // namespace latentd::supervisor
