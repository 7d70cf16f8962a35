#pragma once

#include <exception>
#include <string>
#include <utility>

#include "runtime/base/status.h"

namespace latentd::mesh {

// What communication inside a group throws, as tensor operators throw c10::Error: a peer that died or left
// (UNAVAILABLE), a deadline (DEADLINE_EXCEEDED), ranks that do not do the same (INTERNAL), an abort (its cause). The
// worker's exception boundary turns it into its status. The group's mesh is of no use afterwards.
class CommunicationError final : public std::exception {
 public:
  explicit CommunicationError(Status status) : status_(std::move(status)), text_(messageOf(status_)) {}

  const Status& status() const { return status_; }
  const char* what() const noexcept override { return text_.c_str(); }

 private:
  Status status_;
  std::string text_;
};

}  // namespace latentd::mesh
