#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "proto/api.pb.h"
#include "proto/worker.pb.h"
#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "runtime/base/strong_id.h"
#include "runtime/media/output.h"
#include "runtime/supervisor/worker_id.h"

// What the dispatcher keeps of a job on its way through the groups. Plain data: the rules are in Dispatcher.
namespace latentd::supervisor {

// What the dispatcher needs to know of a job.
struct JobSpec {
  JobId id;
  v1::JobParameters parameters;                            // effective
  std::optional<std::chrono::milliseconds> stall_timeout;  // absent: each group's own
  bool may_restart = false;   // a worker's death under it hands it back instead of failing it
  bool may_displace = false;  // so does the loss of a group that had not begun it
};

// A stage's part in a job.
struct StageRun {
  enum class State {
    kWaiting,     // its command was not sent
    kDispatched,  // sent to every rank; some rank has not answered yet
    kEnded,       // every rank answered or is gone, or the command will never be sent
  };

  State state = State::kWaiting;
  std::optional<GroupIndex> group;  // of the stage's replicas the one that does it; absent until one is chosen
  std::vector<bool> answered;       // by rank, while dispatched
  uint32_t ranks_left = 0;
  bool started = false;
  bool computes = false;  // it has its inputs
  bool cancel_sent = false;
  uint32_t step = 0;  // completed
  uint32_t steps = 0;
  Status failure;                      // of the first rank that failed
  internal::v1::StageTimings timings;  // of the rank that computed longest
  Clock::TimePoint moved;              // last sign of progress, or of what allows some
};

// An artifact that a producer's command will publish for this job.
struct PromisedArtifact {
  EdgeIndex edge;
  ChannelId channel;
  SequenceNumber sequence;
};

inline internal::v1::ArtifactRef toProto(const PromisedArtifact& artifact) {
  internal::v1::ArtifactRef ref;
  ref.set_channel_id(artifact.channel.value);
  ref.set_sequence(artifact.sequence.value);
  return ref;
}

// A producer rank's part in a hand-off of a job.
struct Handoff {
  size_t link = 0;
  Rank producer;

  friend auto operator<=>(const Handoff&, const Handoff&) = default;
};

struct JobRun {
  // Whether it is handed back when it is released, instead of having ended.
  enum class Return {
    kNone,
    kLost,       // a worker died under it
    kDisplaced,  // a group was lost that had not begun it, or had finished it
  };

  JobSpec spec;
  uint64_t admission = 0;                                 // number in the order in which jobs left the queue
  std::vector<StageRun> stages;                           // by place in the pipeline
  std::vector<std::optional<PromisedArtifact>> promises;  // by link
  std::unique_ptr<media::Output> output;                  // while open
  std::optional<Clock::TimePoint> output_due;             // its ring is being made, and has to be there by then
  std::optional<media::OutputResult> result;
  std::set<Handoff> published;
  std::set<Handoff> acknowledged;                 // and told
  std::optional<Clock::TimePoint> figures_until;  // it has succeeded, and waits so long for what is told of hand-offs
  std::optional<Status> outcome;                  // set once; the first cause wins
  bool reported = false;                          // the outcome was told to the host
  Return returns = Return::kNone;
  std::optional<GroupIndex> blamed;  // whose failure the outcome is, until that is told
  // The outcome may be the consequence of a death, or of a failure further up, that is not known yet: until then its
  // cause may replace it.
  std::optional<Clock::TimePoint> report_time;
  bool of_peer = false;  // the outcome is what a rank met of another, which may tell the cause
  size_t failed_at = 0;  // place in the pipeline of the group that failed; behind all groups: the output

  // Of a peer, perhaps, whose exit is told soon.
  bool maybeOfPeer() const { return outcome && (absl::IsUnavailable(*outcome) || of_peer); }
  bool cancelled() const { return outcome && outcome->code() == absl::StatusCode::kCancelled; }
};

}  // namespace latentd::supervisor
