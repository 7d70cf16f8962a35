#pragma once

#include <optional>
#include <string>
#include <utility>

#include "runtime/base/status.h"

namespace latentd::mesh {

// Why a group ended: one file that every rank sees, written whole and once. Not in c10d's FileStore: a rank that is
// killed or stopped inside an access to that leaves a lock or half a record behind, on which the others would wait for
// ever, and this is read just when ranks die.
// Owner: a MeshEnd. Thread: any, in any process. States: none -> given. Failure: where the file cannot be written, the
// cause of this rank counts for this rank.
class FirstCause {
 public:
  explicit FirstCause(std::string path) : path_(std::move(path)) {}

  // `mine`, unless a rank gave another first: then that one.
  Status give(const Status& mine) const;
  // What a rank gave so far.
  std::optional<Status> given() const;

 private:
  std::string path_;
};

}  // namespace latentd::mesh
