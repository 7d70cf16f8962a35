#pragma once

#include <cstddef>
#include <vector>

#include "runtime/config/topology.h"
#include "runtime/supervisor/worker_id.h"

namespace latentd::supervisor {

// How a stage lies in the pipeline, which decides when its jobs get a replica, and in which order they may go.
struct StageShape {
  std::vector<GroupIndex> groups;
  std::vector<size_t> inputs;   // links
  std::vector<size_t> outputs;  // links
  // A later stage has several inputs. On the way there jobs keep one order on every edge: two that took the same slots
  // in different orders would wait for each other.
  bool before_join = false;
  // It gets its inputs from replicas, so that which job's come first is open.
  bool fed_by_replicas = false;
};

// By place in the pipeline.
std::vector<StageShape> shapesOf(const config::Topology& topology);

}  // namespace latentd::supervisor
