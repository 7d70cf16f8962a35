#pragma once

#include <string>
#include <string_view>

#include "runtime/base/status.h"
#include "runtime/base/unique_fd.h"

namespace latentd::ctl {

// Where a result goes: a file that appears whole or not at all, a device or pipe written directly, or standard output.
// A file is written without a name in the folder of its target, so that nothing of it is left however this process
// ends; where the file system has none such, under a name (".video.mp4.PID.part") that the next one for the same target
// removes. Owner: the command. Thread: one. States: open -> committed; a file that was not committed is removed.
// Failure: statuses name the path.
class OutputFile {
 public:
  // INVALID_ARGUMENT for the name of a folder, with that of a file in it.
  static Status checkName(const std::string& path);
  enum class Unfinished { kUnnamed, kNamed };
  // "-" is standard output, which must not be a terminal.
  static StatusOr<OutputFile> open(const std::string& path, Unfinished unfinished = Unfinished::kUnnamed);

  OutputFile(OutputFile&&) = default;
  OutputFile& operator=(OutputFile&&) = delete;
  ~OutputFile();

  // ABORTED when it is a pipe whose reader went away.
  Status write(std::string_view data);
  Status commit();
  bool isStdout() const { return path_ == "-"; }
  const std::string& path() const { return path_; }

 private:
  OutputFile(std::string path, std::string target, std::string partial, UniqueFd fd, bool named);
  Status openPartial(Unfinished unfinished);
  Status failCommit(int error);

  std::string path_;     // as the user gave it
  std::string target_;   // what the partial file becomes: path_ with its links resolved
  std::string partial_;  // its name before it is complete; empty: written directly
  UniqueFd fd_;
  bool named_ = false;  // it has that name already
};

}  // namespace latentd::ctl
