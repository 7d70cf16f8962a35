#pragma once

#include <string>
#include <utility>

#include "runtime/base/status.h"
#include "runtime/base/unique_fd.h"

namespace latentd::supervisor {

// The file that tells a script where the daemon listens: there while it serves, never half written, and never another
// daemon's that runs, which holds a lock on it.
// Owner: the main. Thread: one. States: absent -> published -> removed. Move only.
// Failure: create() fails for a place that cannot be written, so that nobody waits for a file that will not come.
class PortsFile {
 public:
  // Removes what a former daemon left at `path`. An empty path is no file: publish() does nothing. FAILED_PRECONDITION
  // while another daemon has it.
  static StatusOr<PortsFile> create(const std::string& path);
  PortsFile(PortsFile&&) = default;
  PortsFile& operator=(PortsFile&&) = delete;
  ~PortsFile();

  // Lines grpc=HOST:PORT and http=HOST:PORT.
  Status publish(const std::string& grpc, const std::string& http);

 private:
  PortsFile(std::string path, UniqueFd file) : path_(std::move(path)), file_(std::move(file)) {}

  std::string path_;
  UniqueFd file_;  // locked; invalid: no file
};

}  // namespace latentd::supervisor
