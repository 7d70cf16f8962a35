#pragma once

#include <string>
#include <vector>

#include "proto/worker.pb.h"
#include "runtime/config/topology.h"
#include "runtime/supervisor/job_validation.h"

namespace latentd::supervisor {

// Keys of the file that are valid, are not their defaults, and change nothing as the rest of it stands, each with its
// line and what would make it matter: "t.yaml:7: groups[1].options.ring_attention: has no effect without parallel.ring
// above 1". result: of the preflight; limits: of topology and model.
std::vector<std::string> idleKeys(const config::Topology& topology, const internal::v1::PreflightResult& result,
                                  const JobLimits& limits);

}  // namespace latentd::supervisor
