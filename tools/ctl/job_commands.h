#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "tools/ctl/client.h"

namespace latentd::ctl {

struct ListOptions {
  std::vector<std::string> states;  // "queued", "running", ...
  std::optional<std::chrono::milliseconds> since;
  uint32_t limit = 50;     // 0: all
  std::string page_token;  // where another list ended
  bool ids_only = false;
};

struct DownloadOptions {
  std::string id;
  std::string output;  // empty: a name after the id in the current folder
};

ExitCode runList(const GlobalOptions& global, const ListOptions& options);
ExitCode runGet(const GlobalOptions& global, const std::string& id);
// Ends with the job's own outcome.
ExitCode runWatch(const GlobalOptions& global, const std::string& id);
// All of them, even if one fails; the first failure counts.
ExitCode runCancel(const GlobalOptions& global, const std::vector<std::string>& ids);
ExitCode runDelete(const GlobalOptions& global, const std::vector<std::string>& ids);
ExitCode runDownload(const GlobalOptions& global, const DownloadOptions& options);
// Trace events; without an output: ID.trace.json.
ExitCode runTrace(const GlobalOptions& global, const DownloadOptions& options);

inline constexpr const char* kStateNames = "queued, running, cancelling, succeeded, failed, cancelled";

}  // namespace latentd::ctl
