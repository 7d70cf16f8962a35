#include "runtime/worker/proto_convert.h"

#include <ATen/ops/zeros.h>

#include <string>
#include <utility>

#include "tests/support/catch.h"

namespace latentd::worker {
namespace {

using stages::TensorTree;

void add(TensorTree::Dict& dict, const std::string& key, TensorTree value) {
  dict.entries.emplace_back(key, std::move(value));
}

TEST_CASE("proto conversion: a status keeps code and text, as valid UTF-8 and not without end", "[worker]") {
  const v1::StatusProto proto = toProto(absl::NotFoundError("model \xc3\xa9\xff.json is missing"));
  CHECK(proto.code() == 5);
  CHECK(proto.message() == "model \\xc3\\xa9\\xff.json is missing");
  CHECK(fromProto(toProto(absl::CancelledError("stop"))) == absl::CancelledError("stop"));
  CHECK(fromProto(toProto(absl::OkStatus())).ok());
  CHECK(toProto(absl::InternalError(std::string(1 << 20, 'x'))).message().size() == 8192);
}

TEST_CASE("proto conversion: every sampling parameter arrives", "[worker]") {
  v1::JobParameters proto;
  proto.set_prompt("a red circle");
  proto.set_negative_prompt("blue");
  proto.set_frames(17);
  proto.set_width(128);
  proto.set_height(64);
  proto.set_steps(16);
  proto.set_guidance_scale(2.5);
  proto.set_seed(UINT64_MAX);
  proto.set_fps(8);
  stages::SamplingParameters parameters = fromProto(proto);
  CHECK(parameters.prompt == "a red circle");
  CHECK(parameters.negative_prompt == "blue");
  CHECK(parameters.frames == 17);
  CHECK(parameters.width == 128);
  CHECK(parameters.height == 64);
  CHECK(parameters.steps == 16);
  CHECK(parameters.guidance_scale == 2.5);
  CHECK(parameters.seed == UINT64_MAX);
  CHECK(parameters.fps == 8);
  CHECK_FALSE(parameters.flow_shift.has_value());
  proto.set_flow_shift(3.0);
  CHECK(fromProto(proto).flow_shift == 3.0);
  proto.clear_guidance_scale();
  CHECK(fromProto(proto).guidance_scale == 1.0);
}

TEST_CASE("proto conversion: limits that a stage does not know stay unset", "[worker]") {
  stages::ModelLimits limits;
  limits.frame_step = 4;
  limits.defaults.fps = 16;
  const v1::ModelLimits proto = toProto(limits);
  CHECK(proto.frame_step() == 4);
  CHECK(proto.size_multiple() == 0);
  CHECK(proto.defaults().fps() == 16);
  CHECK_FALSE(proto.defaults().has_frames());
  CHECK_FALSE(proto.defaults().has_guidance_scale());
  CHECK_FALSE(proto.defaults().has_negative_prompt());
}

TEST_CASE("proto conversion: a channel's optional dimensions stay absent", "[worker]") {
  internal::v1::ChannelSpec proto;
  proto.set_channel_id(9);
  proto.set_progress_timeout_ms(1500);
  proto.set_consumer_shard_dim(-2);
  const channel::ChannelSpec spec = fromProto(proto);
  CHECK(spec.channel_id == 9);
  CHECK(spec.progress_timeout == std::chrono::milliseconds(1500));
  CHECK_FALSE(spec.producer_shard_dim.has_value());
  CHECK(spec.consumer_shard_dim == -2);
  CHECK(spec.producer_tokens == TokenCut::kNone);
}

TEST_CASE("proto conversion: how tokens are cut has the same numbers everywhere", "[worker]") {
  internal::v1::ChannelSpec proto;
  proto.set_producer_tokens(internal::v1::TOKEN_CUT_TOKENS);
  proto.set_consumer_tokens(internal::v1::TOKEN_CUT_ROWS);
  CHECK(fromProto(proto).producer_tokens == TokenCut::kTokens);
  CHECK(fromProto(proto).consumer_tokens == TokenCut::kRows);
  const internal::v1::Method method = toProto(stages::MethodSpec{
      .name = "relay", .token_inputs = {{"x", TokenCut::kRows}}, .token_outputs = {{"y", TokenCut::kTokens}}});
  CHECK(method.sliced_input_dims().empty());
  CHECK(method.sliced_output_dims().empty());
  CHECK(method.token_inputs().at("x") == internal::v1::TOKEN_CUT_ROWS);
  CHECK(method.token_outputs().at("y") == internal::v1::TOKEN_CUT_TOKENS);
}

TEST_CASE("proto conversion: a method says along which dimensions it takes and gives slices", "[worker]") {
  const internal::v1::Method method =
      toProto(stages::MethodSpec{.name = "relay", .sliced_input_dims = {3, 4}, .sliced_output_dims = {0}});
  REQUIRE(method.sliced_input_dims_size() == 2);
  CHECK(method.sliced_input_dims(0) == 3);
  CHECK(method.sliced_input_dims(1) == 4);
  REQUIRE(method.sliced_output_dims_size() == 1);
  CHECK(method.sliced_output_dims(0) == 0);
}

TEST_CASE("proto conversion: small results are JSON within a bound, and carry no tensor", "[worker]") {
  TensorTree::Dict inner;
  add(inner, "pi", TensorTree(3.5));
  add(inner, "none", TensorTree());
  TensorTree::Dict dict;
  add(dict, "count", TensorTree(int64_t{3}));
  add(dict, "inner", TensorTree(std::move(inner)));
  CHECK(smallResult(TensorTree(dict)).value() == R"({"count":3,"inner":{"none":null,"pi":3.5}})");
  CHECK(smallResult(TensorTree(TensorTree::Dict{})).value().empty());
  add(dict, "big", TensorTree(std::string(70'000, 'x')));
  CHECK(smallResult(TensorTree(dict)).status().code() == absl::StatusCode::kInvalidArgument);
  dict.entries.back().second = TensorTree(at::zeros({1}));
  CHECK(smallResult(TensorTree(dict)).status().code() == absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace latentd::worker
