#pragma once

#include <chrono>
#include <deque>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "runtime/base/child_process.h"
#include "runtime/base/mutex.h"
#include "runtime/base/status.h"

namespace latentd {

// What to start.
struct ChildSpec {
  struct InheritedFd {
    int fd;  // ours; stays open here
    int as;  // its number in the child
  };

  std::string executable;                // a path; never searched for
  std::vector<std::string> arguments;    // without argv[0]
  std::vector<std::string> environment;  // "NAME=value", over the spawner's base environment
  std::vector<InheritedFd> inherit;      // everything else is closed in the child
  bool capture_output = true;            // stdout and stderr into one pipe; false: the parent's own
  std::vector<int> blocked_signals;      // that it starts with: what it does not unblock or read never reaches it
  uint64_t data_bytes_max = 0;           // RLIMIT_DATA: private memory beyond it fails to allocate; 0: no limit
  std::chrono::milliseconds exec_timeout{10000};  // a stuck file system must not stop the caller for ever
};

// Starts processes by exec. A child's standard input is /dev/null, it leads a process group of its own, has default
// signal handling, blocks only what its spec says, and gets SIGKILL when this object's thread ends, that is, when our
// process dies however it dies: PR_SET_PDEATHSIG fires at the end of the *thread* that forked, which is why there is
// exactly one, as old as the object. A parent that died before the child could ask for the signal is noticed by the
// child and ends it.
// Owner: the main, before and after every child. Thread: spawn() from any, one at a time inside.
// Failure: a child that cannot exec is reaped and its cause returned.
class ChildSpawner {
 public:
  // base_environment: "NAME=value" of every child (a main passes its own environ).
  explicit ChildSpawner(std::vector<std::string> base_environment);
  ~ChildSpawner();
  ChildSpawner(const ChildSpawner&) = delete;
  ChildSpawner& operator=(const ChildSpawner&) = delete;

  // Returns once the child runs its own program. NOT_FOUND and PERMISSION_DENIED name the executable.
  StatusOr<ChildProcess> spawn(const ChildSpec& spec);

 private:
  struct Request {
    const ChildSpec* spec;
    std::optional<StatusOr<ChildProcess>> result;
  };

  void run();

  const std::vector<std::string> base_environment_;
  Mutex mutex_;
  CondVar changed_;
  std::deque<Request*> requests_ GUARDED_BY(mutex_);  // bounded by the threads that call spawn(): each waits inside
  bool stopping_ GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace latentd
