#pragma once

#include <chrono>
#include <functional>
#include <string>

#include <grpcpp/grpcpp.h>

#include "proto/api.pb.h"
#include "runtime/base/mutex.h"
#include "runtime/base/status.h"
#include "tools/ctl/client.h"
#include "tools/ctl/output_file.h"

namespace latentd::ctl {

// The one stream a command reads at a time, so that a signal can end it.
// Owner: the command. Thread: any. States: open -> cut (sticky: later streams are cancelled at once).
class StreamSlot {
 public:
  // Holds the context for the time of a stream.
  class Use {
   public:
    Use(StreamSlot& slot, grpc::ClientContext& context);
    ~Use();
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

   private:
    StreamSlot& slot_;
  };

  void cut();
  bool isCut();

 private:
  Mutex mutex_;
  grpc::ClientContext* context_ GUARDED_BY(mutex_) = nullptr;
  bool cut_ GUARDED_BY(mutex_) = false;
};

// Watches a job to its end, which `job` then holds. `tick`: each kFollowTick in which nothing came.
inline constexpr std::chrono::milliseconds kFollowTick{500};
grpc::Status followJob(Client& client, const std::string& id, StreamSlot& slot,
                       const std::function<void(const v1::Job&)>& update, const std::function<void()>& tick,
                       v1::Job* job);

// How a download ended: the daemon's side, and ours.
struct DownloadOutcome {
  grpc::Status remote;
  Status local;
  uint64_t bytes = 0;
};

// Copies a job's result into the output, which the caller commits. A lost connection is resumed where it broke.
DownloadOutcome downloadResult(Client& client, const std::string& id, StreamSlot& slot, OutputFile& output);

}  // namespace latentd::ctl
