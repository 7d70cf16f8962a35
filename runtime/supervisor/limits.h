#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

// Bounds of the supervisor that no user needs to set. What depends on models or machines is in the topology file.
namespace latentd::supervisor {

// A request id is an idempotency key, a UUID at most in practice; the bound keeps finished jobs small.
constexpr size_t kRequestIdBytesMax = 128;
constexpr int32_t kPriorityMax = 100;  // and -100; proto/api.proto
// A job that has lost two workers is more likely their murderer than their victim.
constexpr uint32_t kRetriesMax = 1;

constexpr uint32_t kPageSizeDefault = 50;
constexpr uint32_t kPageSizeMax = 1000;

// A worker's line beyond this is cut: a checkpoint dumped to standard error must not fill the log.
constexpr size_t kLogLineBytesMax = 4096;
// Lines of a dead worker that its error message repeats. A Python-less stack trace fits.
constexpr size_t kLogLinesKept = 20;
// Lines taken from one worker's pipe before the loop looks after others.
constexpr size_t kLogBytesPerTurn = 64 * 1024;

// Commands that wait for a worker to read them. A worker holds at most Limits::in_flight_per_group stage commands, each
// with at most one cancel and one discard an edge, plus its channels' Open and Retire: a worker this far behind hangs.
constexpr size_t kCommandsQueuedMax = 1024;
// Events of one worker that wait for the supervisor's loop before its stream is read on.
constexpr int kEventsUnhandledMax = 64;

// Hand-offs whose figures may come after the job has released the artifact: more than fit in any pool.
constexpr size_t kTransfersRemembered = 64;

// How long a job that is done waits to be told of its hand-offs. That is on its way when the job ends, but for a
// producer that is gone or does not get to run.
constexpr std::chrono::seconds kFiguresTimeout{1};

// How long an output may take to be begun: half of what the stage that waits for it may stand still, for the fault is
// not the stage's, but in these bounds. Seconds are what a very large ring takes beside others, or an encoder's start
// on a busy machine.
constexpr std::chrono::seconds kOutputTimeoutMin{2};
constexpr std::chrono::seconds kOutputTimeoutMax{20};

// Names a group's step gate among the descriptors that a worker inherits; frame rings count from 1.
constexpr uint64_t kStepGateId = UINT64_MAX;
constexpr uint64_t kFlightRecorderId = UINT64_MAX - 1;
// Of each rank in the log of a group's failure: enough to see which step of which layer it was in.
constexpr size_t kOperationsLogged = 4;

// A worker's peers see the end of its connection before its exit is known here: at once on a CPU, after the driver took
// back what it held on a GPU (0.3 to 0.6 s on two H200 with ten other daemons, longer for large models). For so long a
// failure that may be such a consequence waits for the cause, which names rank and signal.
constexpr std::chrono::milliseconds kCauseTimeout{5000};

// The same for a group of which a rank met the failure of another: shorter, so that whatever failed with it is told the
// cause by the group's end.
constexpr std::chrono::milliseconds kSuspicionTimeout = kCauseTimeout / 2;

// Who ends a service sends the signal to each of its processes, one after the other: for so long one that a worker got
// waits for the daemon's own, which makes it a drain.
constexpr std::chrono::milliseconds kDaemonSignalTimeout{250};

// How long an API thread waits for the supervisor's loop. The loop never waits for a worker, so only a stopped or
// overloaded process takes longer, and then the caller is better told.
constexpr std::chrono::seconds kLoopAnswerTimeout{10};
// The same for /healthz, whose callers have short deadlines of their own.
constexpr std::chrono::seconds kLiveAnswerTimeout{2};

}  // namespace latentd::supervisor
