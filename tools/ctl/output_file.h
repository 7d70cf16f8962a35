#pragma once

#include <string>
#include <string_view>

#include "runtime/base/status.h"
#include "runtime/base/unique_fd.h"

namespace latentd::ctl {

// Where a result goes: a file that appears whole or not at all (written beside it, renamed at the end), a device or
// pipe written directly, or standard output.
// Owner: the command. Thread: one. States: open -> committed; a file that was not committed is removed.
// Failure: statuses name the path.
class OutputFile {
 public:
  // INVALID_ARGUMENT for the name of a folder, with that of a file in it.
  static Status checkName(const std::string& path);
  // "-" is standard output, which must not be a terminal.
  static StatusOr<OutputFile> open(const std::string& path);

  OutputFile(OutputFile&&) = default;
  OutputFile& operator=(OutputFile&&) = delete;
  ~OutputFile();

  // ABORTED when it is a pipe whose reader went away.
  Status write(std::string_view data);
  Status commit();
  bool isStdout() const { return path_ == "-"; }
  const std::string& path() const { return path_; }

 private:
  OutputFile(std::string path, std::string target, std::string partial, UniqueFd fd);

  std::string path_;     // as the user gave it
  std::string target_;   // what the partial file becomes: path_ with its links resolved
  std::string partial_;  // empty: written directly
  UniqueFd fd_;
};

}  // namespace latentd::ctl
