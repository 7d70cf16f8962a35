#pragma once

#include <string>

#include "runtime/base/status.h"
#include "runtime/base/unique_fd.h"

namespace latentd::supervisor {

// The daemon's private folder (0700) for sockets and rendezvous files. It holds a lock for as long as the process
// lives, whatever ends it, so that the next daemon can tell a leftover from a neighbour and removes only the former.
// Owner: the main; move only. Thread: one. Failure: a Status that names the folder.
class RuntimeDir {
 public:
  // Makes a new folder inside `parent`, after removing what dead daemons of this user left there.
  static StatusOr<RuntimeDir> create(const std::string& parent);
  RuntimeDir(RuntimeDir&& other) noexcept;
  RuntimeDir& operator=(RuntimeDir&& other) = delete;
  ~RuntimeDir();  // removes it

  const std::string& path() const { return path_; }
  std::string file(const std::string& name) const { return path_ + "/" + name; }

 private:
  RuntimeDir(std::string path, UniqueFd lock) : path_(std::move(path)), lock_(std::move(lock)) {}

  std::string path_;  // empty once moved from
  UniqueFd lock_;
};

}  // namespace latentd::supervisor
