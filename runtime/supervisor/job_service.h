#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "proto/api.pb.h"
#include "runtime/base/status.h"
#include "runtime/base/strong_id.h"
#include "runtime/base/unique_fd.h"

namespace latentd::supervisor {

// A finished job's encoded video.
struct ResultFile {
  UniqueFd fd;  // read only, at offset 0; stays readable if the job is deleted meanwhile
  uint64_t bytes = 0;
  v1::OutputFormat format = v1::OUTPUT_FORMAT_UNSPECIFIED;
};

// What the public API and the HTTP endpoint ask of the supervisor. Messages are the public protocol's own: they are
// plain values and nothing is gained by a second set of structs.
// Owner: the main. Thread: every call may come from any thread, returns without waiting for a worker, and never calls
// back from inside. Failure: statuses as proto/api.proto documents them.
class JobService {
 public:
  // Ends the watch when destroyed; no callback runs after that.
  class Watch {
   public:
    virtual ~Watch() = default;
  };
  // The job as it now is. Called on the supervisor's loop thread: it must only hand the job over (bounded, newest
  // wins).
  using WatchCallback = std::function<void(const v1::Job&)>;

  virtual ~JobService() = default;
  virtual StatusOr<v1::Job> submit(const v1::SubmitRequest& request) = 0;
  virtual StatusOr<v1::Job> get(const JobId& id) = 0;
  virtual StatusOr<v1::ListJobsResponse> list(const v1::ListJobsRequest& request) = 0;
  virtual StatusOr<v1::Job> cancel(const JobId& id) = 0;
  // The callback gets the present state first, then each change, the terminal state last.
  virtual StatusOr<std::unique_ptr<Watch>> watch(const JobId& id, WatchCallback callback) = 0;
  virtual StatusOr<ResultFile> openResult(const JobId& id) = 0;
  virtual Status remove(const JobId& id) = 0;
  virtual StatusOr<std::vector<v1::TraceTrack>> trace(const JobId& id) = 0;

  virtual v1::Topology topology() = 0;
  virtual v1::GetEdgesResponse edges() = 0;
  // group: empty for every group of several ranks.
  virtual StatusOr<v1::FlightRecords> flightRecords(const std::string& group) = 0;
  // Stops admission. Returns the jobs that are left; the daemon ends when there are none or after `deadline`.
  virtual uint32_t drain(std::chrono::milliseconds deadline) = 0;

  // /healthz: the supervisor's loop answers. /readyz: every rank's heartbeat is fresh, the dispatcher moves, and the
  // daemon is not draining; otherwise the reason.
  virtual Status live() = 0;
  virtual Status ready() = 0;
};

}  // namespace latentd::supervisor
