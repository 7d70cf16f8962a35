#include "runtime/config/graph.h"

#include <algorithm>
#include <optional>

#include "runtime/config/replicas.h"
#include "runtime/config/spelling.h"
#include "runtime/config/transport.h"

namespace latentd::config {
namespace {

StatusOr<size_t> findGroup(const Topology& topology, const std::string& name, const std::string& path,
                           const Locations& locations) {
  std::vector<std::string> names;
  for (size_t i = 0; i < topology.groups.size(); ++i) {
    if (topology.groups[i].name == name) return i;
    names.push_back(topology.groups[i].name);
  }
  const std::vector<std::string> similar = nearest(name, names);
  return locations.refuse(path, "there is no group '" + name + "'; " +
                                    (similar.empty() ? "" : "did you mean " + quotedList(similar) + "? ") +
                                    "Groups: " + quotedList(names));
}

// A job runs one method of a group: what its edges and its own key name must agree.
Status setMethod(GroupSpec& group, const std::string& method, const std::string& path, const Locations& locations) {
  if (group.method.empty()) group.method = method;
  if (group.method == method) return {};
  return locations.refuse(path, "names method '" + method + "' of group " + group.name + ", which elsewhere is '" +
                                    group.method + "'; a job runs one method of a group");
}

Status resolveEdges(Draft& draft, const Locations& locations) {
  Topology& topology = draft.topology;
  for (size_t i = 0; i < draft.edges.size(); ++i) {
    const EdgeDraft& edge = draft.edges[i];
    const std::string path = indexed("edges", i);
    EdgeSpec spec = edge.spec;
    LATENTD_ASSIGN_OR_RETURN(spec.from, findGroup(topology, edge.from.group, path + ".from", locations));
    LATENTD_ASSIGN_OR_RETURN(spec.to, findGroup(topology, edge.to.group, path + ".to", locations));
    if (spec.from == spec.to) {
      return locations.refuse(path + ".to", "'" + edge.to.group + "' is the group that the edge comes from; " +
                                                "an edge joins two different groups");
    }
    LATENTD_RETURN_IF_ERROR(setMethod(topology.groups[spec.from], edge.from.method, path + ".from", locations));
    LATENTD_RETURN_IF_ERROR(setMethod(topology.groups[spec.to], edge.to.method, path + ".to", locations));
    spec.name = edge.from.group + "." + edge.from.method + "->" + edge.to.group + "." + edge.to.method;
    for (size_t j = 0; j < topology.edges.size(); ++j) {
      if (topology.edges[j].name != spec.name) continue;
      return locations.refuse(path, spec.name + " is given already by edges[" + std::to_string(j) + "]; remove one");
    }
    topology.edges.push_back(std::move(spec));
  }
  return {};
}

Status checkPairs(const Topology& topology, const Locations& locations) {
  size_t edges = 0;
  for (size_t i = 0; i < topology.edges.size(); ++i) {
    const GroupSpec& from = topology.groups[topology.edges[i].from];
    const GroupSpec& to = topology.groups[topology.edges[i].to];
    edges += pairsOf(from, to);
    if (edges <= kEdgesMax) continue;
    return locations.refuse(indexed("edges", i),
                            "each of " + std::to_string(from.parallel.dp) + " replicas of " + from.name +
                                " and each of " + std::to_string(to.parallel.dp) + " of " + to.name +
                                " have an edge of their own: with " + "these the file makes " + std::to_string(edges) +
                                ", at most " + std::to_string(kEdgesMax) + " are valid; lower parallel.dp of either");
  }
  return {};
}

Status checkMethods(const Topology& topology, const Locations& locations) {
  for (size_t i = 0; i < topology.groups.size(); ++i) {
    if (!topology.groups[i].method.empty()) continue;
    const std::string path = indexed("groups", i);
    if (topology.groups.size() > 1) {
      return locations.refuse(path, "group '" + topology.groups[i].name + "' has no edge; connect it or remove it");
    }
    return locations.refuse(path + ".method", "missing; a group without edges names the method that a job runs");
  }
  return {};
}

bool feedsOther(const Topology& topology, size_t group) {
  return std::any_of(topology.edges.begin(), topology.edges.end(),
                     [group](const EdgeSpec& edge) { return edge.from == group; });
}

// The next group in file order whose producers are all placed.
std::optional<size_t> nextReady(const Topology& topology, const std::vector<bool>& placed) {
  for (size_t group = 0; group < topology.groups.size(); ++group) {
    if (placed[group]) continue;
    const bool waits = std::any_of(topology.edges.begin(), topology.edges.end(),
                                   [&](const EdgeSpec& edge) { return edge.to == group && !placed[edge.from]; });
    if (!waits) return group;
  }
  return std::nullopt;
}

// Every group that is not placed has a producer that is not placed: going back along those must repeat.
std::string describeCycle(const Topology& topology, const std::vector<bool>& placed) {
  size_t group = std::find(placed.begin(), placed.end(), false) - placed.begin();
  std::vector<size_t> seen;
  while (std::find(seen.begin(), seen.end(), group) == seen.end()) {
    seen.push_back(group);
    const auto edge = std::find_if(topology.edges.begin(), topology.edges.end(), [&](const EdgeSpec& candidate) {
      return candidate.to == group && !placed[candidate.from];
    });
    group = edge->from;
  }
  std::string text = topology.groups[group].name;
  for (size_t i = seen.size(); i-- > 0;) {
    text += " -> " + topology.groups[seen[i]].name;
    if (seen[i] == group) break;
  }
  return text;
}

StatusOr<std::vector<size_t>> sortGroups(const Topology& topology, const Locations& locations) {
  std::vector<bool> placed(topology.groups.size(), false);
  std::vector<size_t> order;
  while (order.size() < topology.groups.size()) {
    const std::optional<size_t> next = nextReady(topology, placed);
    if (!next) {
      return locations.refuse("edges", "the groups feed each other in a circle: " + describeCycle(topology, placed) +
                                           "; remove one of these edges");
    }
    placed[*next] = true;
    order.push_back(*next);
  }
  return order;
}

// No circle and one group that feeds no other: every group reaches it, so it stands last in their order.
Status checkSink(const Topology& topology, const Locations& locations) {
  std::vector<size_t> sinks;
  for (size_t group = 0; group < topology.groups.size(); ++group) {
    if (!feedsOther(topology, group)) sinks.push_back(group);
  }
  if (sinks.size() > 1) {
    return locations.refuse(indexed("groups", sinks[1]), "both '" + topology.groups[sinks[0]].name + "' and '" +
                                                             topology.groups[sinks[1]].name +
                                                             "' feed no other group; exactly one emits the frames");
  }
  return {};
}

}  // namespace

Status connect(Draft& draft, const Locations& locations) {
  LATENTD_RETURN_IF_ERROR(resolveEdges(draft, locations));
  LATENTD_RETURN_IF_ERROR(checkMethods(draft.topology, locations));
  LATENTD_ASSIGN_OR_RETURN(const std::vector<size_t> order, sortGroups(draft.topology, locations));
  LATENTD_RETURN_IF_ERROR(checkSink(draft.topology, locations));
  LATENTD_RETURN_IF_ERROR(checkPairs(draft.topology, locations));
  expandReplicas(order, draft.topology);
  settleTransports({}, draft.topology);
  return {};
}

}  // namespace latentd::config
