#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "proto/api.pb.h"
#include "runtime/base/status.h"
#include "runtime/base/strong_id.h"

namespace latentd::media {

struct OutputResult {
  std::string path;  // in the spool
  uint64_t bytes = 0;
  uint32_t frames = 0;
};

// Marks a failure that is not the output's own: its frames did not come. Travels as a payload.
Status markFramesMissing(Status status);
bool isFramesMissing(const Status& status);

// One job's way out: a frame ring that the last stage's worker fills, and whoever turns frames into a file of the spool
// (latent-encoder for containers, a thread of ours for raw formats).
// Owner: the supervisor, one per running job. Thread: the supervisor's loop. States: open -> finishing -> ended.
// Failure: sticky; an encoder that dies or a full disk ends this output only, through `done`, and the worker's next
// write fails.
class Output {
 public:
  virtual ~Output() = default;  // aborts what has not ended, removes the partial file
  virtual uint64_t ringId() const = 0;
  // The ring's descriptor for the worker, valid while this object lives. Not before `opened` was called with OK.
  virtual int ringFd() const = 0;
  // The worker has written all its frames: the file is complete once `done` was called with OK.
  virtual void finish() = 0;
  // The job failed or was cancelled.
  virtual void abort(const Status& reason) = 0;
};

// Owner: the main. Thread: the supervisor's loop.
class OutputFactory {
 public:
  // The ring is there, or could not be made: RESOURCE_EXHAUSTED when the spool has no room, or the host no memory.
  // Called exactly once, from any thread; never from inside open().
  using Opened = std::function<void(const Status&)>;
  // After an OK of `opened`, exactly once, from any thread: the result or the first failure.
  using Done = std::function<void(StatusOr<OutputResult>)>;

  virtual ~OutputFactory() = default;
  // At once: ring and file are made meanwhile, which takes milliseconds for large frames, and longer on a slow disk.
  // UNAVAILABLE when the format's encoder is known not to run here.
  virtual StatusOr<std::unique_ptr<Output>> open(const JobId& job, const v1::JobParameters& parameters, Opened opened,
                                                 Done done) = 0;
  // Forgets a finished file. Not an error if it is already gone.
  virtual void remove(const JobId& job) = 0;
};

}  // namespace latentd::media
