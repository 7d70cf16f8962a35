#include "runtime/config/replicas.h"

#include <iterator>
#include <utility>

namespace latentd::config {
namespace {

GroupSpec replicaOf(const GroupSpec& group, uint32_t replica) {
  GroupSpec spec = group;
  if (group.parallel.dp == 1) return spec;
  const size_t ranks = group.devices.size() / group.parallel.dp;
  const auto first = group.devices.begin() + static_cast<std::ptrdiff_t>(replica * ranks);
  spec.name += "." + std::to_string(replica);
  spec.devices.assign(first, first + static_cast<std::ptrdiff_t>(ranks));
  spec.parallel.dp = 1;
  return spec;
}

std::string nameOf(const GroupSpec& from, const GroupSpec& to) {
  return from.name + "." + from.method + "->" + to.name + "." + to.method;
}

void addEdges(const EdgeSpec& declared, const std::vector<size_t>& places, Topology& topology) {
  const size_t index = topology.links.size();
  const LinkSpec& link = topology.links.emplace_back(
      LinkSpec{declared.name, places[declared.from], places[declared.to], topology.edges.size()});
  const std::vector<size_t>& producers = topology.stages[link.from].groups;
  const std::vector<size_t>& consumers = topology.stages[link.to].groups;
  for (const size_t from : producers) {
    for (const size_t to : consumers) {
      EdgeSpec& edge = topology.edges.emplace_back(declared);
      edge.link = index;
      edge.from = from;
      edge.to = to;
      if (producers.size() * consumers.size() > 1) edge.name = nameOf(topology.groups[from], topology.groups[to]);
    }
  }
}

}  // namespace

size_t pairsOf(const GroupSpec& from, const GroupSpec& to) { return size_t{from.parallel.dp} * to.parallel.dp; }

void expandReplicas(const std::vector<size_t>& order, Topology& topology) {
  const std::vector<GroupSpec> entries = std::exchange(topology.groups, {});
  const std::vector<EdgeSpec> declared = std::exchange(topology.edges, {});
  std::vector<size_t> places(entries.size());  // by entry
  for (size_t place = 0; place < order.size(); ++place)
    places[order[place]] = place;
  topology.stages.resize(entries.size());
  for (size_t entry = 0; entry < entries.size(); ++entry) {
    StageSpec& stage = topology.stages[places[entry]];
    stage.name = entries[entry].name;
    stage.entry = entry;
    for (uint32_t replica = 0; replica < entries[entry].parallel.dp; ++replica) {
      stage.groups.push_back(topology.groups.size());
      topology.groups.push_back(replicaOf(entries[entry], replica));
      topology.groups.back().place = places[entry];
    }
  }
  for (const EdgeSpec& edge : declared)
    addEdges(edge, places, topology);
}

}  // namespace latentd::config
