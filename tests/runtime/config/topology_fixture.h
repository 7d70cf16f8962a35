#pragma once

#include <string>
#include <vector>

#include "runtime/config/findings.h"
#include "runtime/config/loader.h"

namespace latentd::config {

// Three connected groups without a model: a base for what a test changes. Lines are counted by the refusal table.
inline const std::string kThreeGroups = R"(listen: 127.0.0.1:0
groups:
  - name: text
    stage: noop.source
  - name: denoise
    stage: noop.middle
  - name: decode
    stage: noop.sink
edges:
  - from: text.encode
    to: denoise.denoise
  - from: denoise.denoise
    to: decode.decode
)";

inline Surroundings testSurroundings() { return Surroundings{"/tmp", 8}; }

inline StatusOr<Topology> parse(const std::string& yaml) { return parseTopology(yaml, "t.yaml", testSurroundings()); }

// What a preflight would say of groups without a model, where nobody allows less than the topology.
inline Findings findingsFor(const Topology& topology) {
  Findings findings;
  findings.weight_bytes.assign(topology.groups.size(), 0);
  findings.token_cuts.resize(topology.links.size());
  findings.process_bytes = uint64_t{300} << 20;
  findings.limits = topology.limits;
  findings.defaults = topology.defaults;
  return findings;
}

// In the place of a mesh's, which this folder does not know.
inline std::vector<std::string> namedPlaces(const GroupSpec& group) {
  std::vector<std::string> places;
  for (uint32_t rank = 0; rank < group.ranks(); ++rank)
    places.push_back("place " + std::to_string(rank));
  return places;
}

// The message, or "OK".
inline std::string refusal(const std::string& yaml) {
  const StatusOr<Topology> topology = parse(yaml);
  return topology.ok() ? "OK" : messageOf(topology.status());
}

// The text with one occurrence replaced.
inline std::string with(std::string text, const std::string& from, const std::string& to) {
  return text.replace(text.find(from), from.size(), to);
}

}  // namespace latentd::config
