#pragma once

#include <chrono>
#include <map>
#include <string>
#include <thread>

#include "runtime/base/mutex.h"
#include "tests/support/fake_job_service.h"

namespace latentd::testing {

// Moves the jobs of a FakeJobService on by one step a tick, as the prompt says:
//   "wait"   stays queued                  "hold"  stays in its first denoise step until it is cancelled
//   "fail"   fails in denoise step 2       "stuck" like hold, but its cancellation never ends
//   "short"  succeeds with a result that is shorter than promised
//   anything else succeeds with resultContent().
// Owner: the test. Thread: its own.
class ScriptedJobs {
 public:
  ScriptedJobs(FakeJobService& jobs, std::chrono::milliseconds tick);
  ~ScriptedJobs();
  ScriptedJobs(const ScriptedJobs&) = delete;
  ScriptedJobs& operator=(const ScriptedJobs&) = delete;

  // What every successful job made.
  static std::string resultContent();

 private:
  void run();
  void advance(const v1::Job& job);
  bool awaitsWatch(const JobId& job);
  void produce(const v1::Job& job, uint32_t tick);

  FakeJobService& jobs_;
  const std::chrono::milliseconds tick_;
  std::map<JobId, uint32_t> ticks_;  // of its own thread
  std::map<JobId, uint32_t> unwatched_;
  Mutex mutex_;
  CondVar stop_requested_;
  bool stopping_ GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace latentd::testing
