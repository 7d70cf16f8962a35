#pragma once

#include <string>

#include "runtime/base/status.h"

namespace latentd::supervisor {

// The file that tells a script where the daemon listens: there while it serves, and never half written.
// Owner: the main. Thread: one. States: absent -> published -> removed. Move only.
// Failure: create() fails for a place that cannot be written, so that nobody waits for a file that will not come.
class PortsFile {
 public:
  // Removes what a former daemon left at `path`. An empty path is no file: publish() does nothing.
  static StatusOr<PortsFile> create(const std::string& path);
  PortsFile(PortsFile&& other) noexcept;
  PortsFile& operator=(PortsFile&&) = delete;
  ~PortsFile();

  // Lines grpc=HOST:PORT and http=HOST:PORT.
  Status publish(const std::string& grpc, const std::string& http);

 private:
  explicit PortsFile(std::string path) : path_(std::move(path)) {}
  std::string partial() const { return path_ + ".partial"; }

  std::string path_;
};

}  // namespace latentd::supervisor
