#include "runtime/supervisor/token_cuts.h"

#include "runtime/base/status_field.h"
#include "tests/runtime/supervisor/fakes.h"
#include "tests/support/catch.h"

namespace latentd::supervisor {
namespace {

namespace wire = internal::v1;

using Cuts = std::map<std::string, wire::TokenCut>;

// A chain of three stages, whose methods are all called as the first one's topology says.
struct Chain {
  config::Topology topology = chainTopology({1, 2, 2});
  Methods methods[3];

  Chain() {
    for (size_t place = 0; place < 3; ++place) {
      wire::Method& method = *methods[place].Add();
      method.set_name(topology.groups[topology.stages[place].groups.front()].method);
      if (place > 0) method.add_inputs("latents");
      if (place > 0) method.add_inputs("mask");
      if (place < 2) method.add_outputs("latents");
      if (place < 2) method.add_outputs("mask");
    }
  }
  void returns(size_t place, const Cuts& cuts) {
    for (const auto& [key, cut] : cuts)
      (*methods[place].Mutable(0)->mutable_token_outputs())[key] = cut;
  }
  void takes(size_t place, const Cuts& cuts) {
    for (const auto& [key, cut] : cuts)
      (*methods[place].Mutable(0)->mutable_token_inputs())[key] = cut;
  }
  std::vector<const Methods*> all() const { return {&methods[0], &methods[1], &methods[2]}; }
  StatusOr<std::vector<config::TokenCuts>> cuts() const { return tokenCuts(topology, all()); }
};

void refuses(const Chain& chain, const std::string& field, const std::vector<std::string>& words) {
  const Status status = chain.cuts().status();
  CAPTURE(status.ToString());
  CHECK(status.code() == absl::StatusCode::kInvalidArgument);
  CHECK(fieldOf(status) == field);
  for (const std::string& word : words) {
    CAPTURE(word);
    CHECK(messageOf(status).find(word) != std::string::npos);
  }
}

}  // namespace

TEST_CASE("token_cuts: both sides of each edge say how tokens are cut", "[supervisor]") {
  Chain chain;
  CHECK(chain.cuts().value() == std::vector<config::TokenCuts>(2));
  chain.returns(1, {{"latents", wire::TOKEN_CUT_TOKENS}});
  chain.takes(2, {{"latents", wire::TOKEN_CUT_ROWS}, {"mask", wire::TOKEN_CUT_NONE}});
  CHECK(chain.cuts().value() == std::vector<config::TokenCuts>{{}, {TokenCut::kTokens, TokenCut::kRows}});
  // What comes as a plain tensor is not cut, although tokens would be welcome.
  chain.takes(1, {{"latents", wire::TOKEN_CUT_TOKENS}});
  CHECK(chain.cuts().value()[0] == config::TokenCuts{});
  // What nobody takes is published all the same.
  Chain ignored;
  ignored.returns(0, {{"latents", wire::TOKEN_CUT_TOKENS}});
  ignored.methods[1].Mutable(0)->clear_inputs();
  CHECK(ignored.cuts().value()[0] == config::TokenCuts{TokenCut::kTokens, TokenCut::kNone});
}

TEST_CASE("token_cuts: what does not fit is refused at its edge, with what would", "[supervisor]") {
  Chain untaken;
  untaken.returns(1, {{"latents", wire::TOKEN_CUT_TOKENS}});
  refuses(untaken, "edges[1].to", {"g1", "\"latents\" in token layout", "g2", "wan.vae_decoder"});
  Chain torn;
  torn.returns(0, {{"latents", wire::TOKEN_CUT_TOKENS}, {"mask", wire::TOKEN_CUT_ROWS}});
  torn.takes(1, {{"latents", wire::TOKEN_CUT_NONE}, {"mask", wire::TOKEN_CUT_NONE}});
  refuses(torn, "edges[0].from", {"g0", "\"mask\" along rows"});
  Chain greedy;
  greedy.returns(0, {{"latents", wire::TOKEN_CUT_TOKENS}, {"mask", wire::TOKEN_CUT_TOKENS}});
  greedy.takes(1, {{"latents", wire::TOKEN_CUT_TOKENS}, {"mask", wire::TOKEN_CUT_ROWS}});
  refuses(greedy, "edges[0].to", {"g1", "\"mask\" along rows"});
}

TEST_CASE("token_cuts: an edge's shard dimensions are those of its stages", "[supervisor]") {
  Chain chain;
  config::EdgeSpec& edge = chain.topology.edges[1];
  edge.consumer_shard_dim = 1;
  refuses(chain, "edges[1].consumer_shard_dim", {"got 1", "g2", "takes no slices", "leave the key out"});
  chain.methods[2].Mutable(0)->add_sliced_input_dims(3);
  refuses(chain, "edges[1].consumer_shard_dim", {"got 1", "g2", "takes slices along dimension 3 alone"});
  edge.consumer_shard_dim = 3;
  CHECK(chain.cuts().ok());
  edge.producer_shard_dim = 2;
  refuses(chain, "edges[1].producer_shard_dim", {"got 2", "g1", "returns no slices", "rank 0 publishes"});
  chain.methods[1].Mutable(0)->add_sliced_output_dims(0);
  chain.methods[1].Mutable(0)->add_sliced_output_dims(4);
  refuses(chain, "edges[1].producer_shard_dim", {"got 2", "g1", "returns slices along dimension 0 or 4 alone"});
  edge.producer_shard_dim = 4;
  CHECK(chain.cuts().ok());
  // It is the same once they are loaded.
  chain.methods[1].Mutable(0)->clear_sliced_output_dims();
  CHECK(checkTokenCuts(chain.topology, chain.all()).code() == absl::StatusCode::kInvalidArgument);
}

TEST_CASE("token_cuts: tokens are not cut along a dimension, even one that the stages know", "[supervisor]") {
  Chain chain;
  chain.returns(1, {{"latents", wire::TOKEN_CUT_TOKENS}});
  chain.takes(2, {{"latents", wire::TOKEN_CUT_ROWS}});
  chain.methods[1].Mutable(0)->add_sliced_output_dims(3);
  chain.methods[2].Mutable(0)->add_sliced_input_dims(3);
  chain.topology.edges[1].consumer_shard_dim = 3;
  refuses(chain, "edges[1].consumer_shard_dim", {"got 3", "g1", "token layout", "leave the key out"});
  chain.topology.edges[1].producer_shard_dim = 3;
  chain.topology.edges[1].consumer_shard_dim.reset();
  refuses(chain, "edges[1].producer_shard_dim", {"got 3", "g1", "token layout"});
}

TEST_CASE("token_cuts: a loaded stage that says something else is found", "[supervisor]") {
  Chain chain;
  CHECK(checkTokenCuts(chain.topology, chain.all()).ok());
  chain.returns(1, {{"latents", wire::TOKEN_CUT_TOKENS}});
  chain.takes(2, {{"latents", wire::TOKEN_CUT_ROWS}});
  const Status differs = checkTokenCuts(chain.topology, chain.all());
  CHECK(differs.code() == absl::StatusCode::kInternal);
  CHECK(messageOf(differs).find("tokens and rows") != std::string::npos);
  chain.topology.edges[1].tokens = {TokenCut::kTokens, TokenCut::kRows};
  CHECK(checkTokenCuts(chain.topology, chain.all()).ok());
}

}  // namespace latentd::supervisor
