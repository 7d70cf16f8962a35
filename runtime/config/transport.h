#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "runtime/config/topology.h"

namespace latentd::config {

struct TransportChoice {
  Transport transport = Transport::kShm;
  std::string reason;  // "both groups are on the CPU of this host"
};

// The GPUs of this host as a worker sees them.
struct DeviceSurvey {
  uint32_t count = 0;
  std::set<std::pair<uint32_t, uint32_t>> not_peers;  // (lower, higher) index: neither reaches the other's memory
  bool mps = false;                                   // processes share one through the Multi-Process Service
};

// How tensors go from one group to the other; a pure function of where the groups are. Without a survey, GPUs are taken
// for peers.
TransportChoice selectTransport(const GroupSpec& from, const GroupSpec& to, const DeviceSurvey& survey = {});

// Selects every edge's transport anew, now that it is known which GPUs are peers.
void settleTransports(const DeviceSurvey& survey, Topology& topology);
// "group denoise is on cuda:1, and this machine has no GPU"; nothing where the group's GPUs are all here.
std::optional<std::string> missingDevice(const DeviceSurvey& survey, const GroupSpec& group);
// "cuda:0 has 3 worker processes, which take turns ..."; nothing where every process has a GPU of this machine for
// itself, or shares it through the Multi-Process Service.
std::optional<std::string> turnsTaken(const DeviceSurvey& survey, const std::vector<GroupSpec>& groups);

}  // namespace latentd::config
