#include "runtime/config/findings.h"

namespace latentd::config {

void settle(const Findings& findings, Topology& topology) {
  settleTransports(findings.devices, topology);
  for (EdgeSpec& edge : topology.edges)
    edge.tokens = findings.token_cuts.at(edge.link);
}

}  // namespace latentd::config
