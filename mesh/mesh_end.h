#pragma once

#include <functional>
#include <optional>
#include <string>

#include "mesh/first_cause.h"
#include "runtime/base/mutex.h"
#include "runtime/base/status.h"

namespace latentd::mesh {

// The end of a mesh on one rank: its cause, which is the same on every rank, and the closing of all that it has open.
// Owner: a Mesh. Thread: any. States: open -> ended. Failure: none.
class MeshEnd {
 public:
  explicit MeshEnd(std::string cause_file) : first_cause_(std::move(cause_file)) {}

  // What closes the connections; called once, from the thread that ends the mesh. Set before the first end().
  void onEnd(std::function<void()> close);

  // Ends the mesh. Returns the first cause that any rank gave, for all times. The cause is given before the connections
  // are closed, so that whoever sees them closed finds it.
  Status end(const Status& cause) EXCLUDES(mutex_);

  // The cause, once a rank gave one: this rank ends with it. A look at a file that is not there, while the mesh is
  // open: not every library shows that a peer closed its connections.
  std::optional<Status> cause() EXCLUDES(mutex_);

 private:
  FirstCause first_cause_;
  std::function<void()> close_;
  Mutex mutex_;
  std::optional<Status> cause_ GUARDED_BY(mutex_);
};

}  // namespace latentd::mesh
