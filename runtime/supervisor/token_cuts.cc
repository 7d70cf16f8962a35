#include "runtime/supervisor/token_cuts.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>

#include "runtime/base/status_field.h"

namespace latentd::supervisor {
namespace {

namespace wire = internal::v1;

// Collects the one cut of an edge's side.
class OneCut {
 public:
  // False if another one was said before.
  bool say(int number) {
    const auto cut = static_cast<TokenCut>(number);
    if (said_ && *said_ != cut) return false;
    said_ = cut;
    return true;
  }
  TokenCut value() const { return said_.value_or(TokenCut::kNone); }

 private:
  std::optional<TokenCut> said_;
};

Status refuse(size_t link, const char* end, const std::string& message) {
  return atField(absl::InvalidArgumentError(message), config::indexed("edges", link) + "." + end);
}

StatusOr<config::TokenCuts> cutsOf(const config::Topology& topology, const std::vector<const Methods*>& methods,
                                   size_t index) {
  const config::LinkSpec& link = topology.links[index];
  const wire::Method& from = methodOf(topology, methods, link.from);
  const wire::Method& to = methodOf(topology, methods, link.to);
  const std::string producer = topology.stages[link.from].name + "." + from.name();
  const std::string consumer = topology.stages[link.to].name + "." + to.name();
  OneCut published;
  OneCut read;
  // In the order of outputs(): a map has none.
  for (const std::string& key : from.outputs()) {
    const auto cut = from.token_outputs().find(key);
    if (cut == from.token_outputs().end()) continue;
    if (!published.say(cut->second)) {
      return refuse(index, "from",
                    fmt::format("{} cuts its outputs in different ways, \"{}\" along {}; one edge has one", producer,
                                key, toString(static_cast<TokenCut>(cut->second))));
    }
    if (std::find(to.inputs().begin(), to.inputs().end(), key) == to.inputs().end()) continue;
    const auto wanted = to.token_inputs().find(key);
    if (wanted == to.token_inputs().end()) {
      return refuse(index, "to",
                    fmt::format("{} returns \"{}\" in token layout, of which each of its ranks holds a part, and {} "
                                "does not take that; let the edge lead to a stage that does (wan.vae_decoder), or let "
                                "{} return whole tensors (options.latents: whole)",
                                producer, key, consumer, topology.stages[link.from].name));
    }
    if (!read.say(wanted->second)) {
      return refuse(index, "to",
                    fmt::format("{} wants its inputs cut in different ways, \"{}\" along {}; one edge has "
                                "one",
                                consumer, key, toString(static_cast<TokenCut>(wanted->second))));
    }
  }
  return config::TokenCuts{published.value(), read.value()};
}

// One side of an edge, and what its method says of slices.
struct SlicedSide {
  const char* key;
  std::optional<int32_t> dim;
  const google::protobuf::RepeatedField<int32_t>& valid;
  std::string does;   // "denoise.denoise takes"
  const char* whole;  // what happens without the key
};

Status checkSide(size_t link, const SlicedSide& side) {
  if (!side.dim || std::find(side.valid.begin(), side.valid.end(), *side.dim) != side.valid.end()) {
    return absl::OkStatus();
  }
  if (side.valid.empty()) {
    return refuse(link, side.key,
                  fmt::format("got {}, but {} no slices, as its group is set up; leave the key out: {}", *side.dim,
                              side.does, side.whole));
  }
  return refuse(link, side.key,
                fmt::format("got {}, but {} slices along dimension {} alone; give that, or leave the key out: {}",
                            *side.dim, side.does, fmt::join(side.valid, " or "), side.whole));
}

// Slices along a dimension that a stage does not know would make another video, or none.
Status checkSlices(const config::Topology& topology, const std::vector<const Methods*>& methods, size_t index) {
  const config::LinkSpec& link = topology.links[index];
  const config::EdgeSpec& edge = topology.edges[link.first_edge];
  const wire::Method& from = methodOf(topology, methods, link.from);
  const wire::Method& to = methodOf(topology, methods, link.to);
  const std::string producer = topology.stages[link.from].name + "." + from.name();
  const std::string consumer = topology.stages[link.to].name + "." + to.name();
  const SlicedSide sides[] = {{"producer_shard_dim", edge.producer_shard_dim, from.sliced_output_dims(),
                               producer + " returns", "rank 0 publishes whole tensors"},
                              {"consumer_shard_dim", edge.consumer_shard_dim, to.sliced_input_dims(),
                               consumer + " takes", "every rank reads whole tensors"}};
  for (const SlicedSide& side : sides) {
    if (side.dim && !from.token_outputs().empty()) {
      return refuse(index, side.key,
                    fmt::format("got {}, but {} returns videos in token layout, which no dimension cuts: the stages "
                                "of both sides say what each rank holds; leave the key out",
                                *side.dim, producer));
    }
    LATENTD_RETURN_IF_ERROR(checkSide(index, side));
  }
  return absl::OkStatus();
}

}  // namespace

StatusOr<std::vector<config::TokenCuts>> tokenCuts(const config::Topology& topology,
                                                   const std::vector<const Methods*>& methods) {
  std::vector<config::TokenCuts> cuts;
  for (size_t link = 0; link < topology.links.size(); ++link) {
    LATENTD_ASSIGN_OR_RETURN(const config::TokenCuts of_link, cutsOf(topology, methods, link));
    LATENTD_RETURN_IF_ERROR(checkSlices(topology, methods, link));
    cuts.push_back(of_link);
  }
  return cuts;
}

Status checkTokenCuts(const config::Topology& topology, const std::vector<const Methods*>& methods) {
  LATENTD_ASSIGN_OR_RETURN(const std::vector<config::TokenCuts> cuts, tokenCuts(topology, methods));
  for (const config::EdgeSpec& edge : topology.edges) {
    if (cuts[edge.link] == edge.tokens) continue;
    return absl::InternalError(fmt::format(
        "edge {}: the loaded stages cut tokens along {} and {}, before they were loaded they said {} and {}", edge.name,
        toString(cuts[edge.link].producer), toString(cuts[edge.link].consumer), toString(edge.tokens.producer),
        toString(edge.tokens.consumer)));
  }
  return absl::OkStatus();
}

}  // namespace latentd::supervisor
