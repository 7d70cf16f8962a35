#include "runtime/worker/proto_convert.h"

#include <nlohmann/json.hpp>

#include <string>
#include <utility>

#include "mesh/scalar_type.h"

namespace latentd::worker {
namespace {

constexpr size_t kMessageBytesMax = 8192;       // of a status: the cause comes first
constexpr size_t kSmallResultBytesMax = 65536;  // the control plane carries no data

std::string escapeNonAscii(const std::string& text) {
  constexpr char kHex[] = "0123456789abcdef";
  std::string escaped;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x80) {
      escaped.push_back(c);
    } else {
      escaped.append("\\x").append({kHex[byte >> 4], kHex[byte & 15]});
    }
  }
  return escaped;
}

template <class T, class Set>
void setIf(const std::optional<T>& value, const Set& set) {
  if (value) set(*value);
}

StatusOr<nlohmann::json> toJson(const stages::TensorTree& tree) {
  if (const auto* dict = tree.getIf<stages::TensorTree::Dict>()) {
    nlohmann::json object = nlohmann::json::object();
    for (const auto& [key, entry] : dict->entries) {
      LATENTD_ASSIGN_OR_RETURN(object[key], toJson(entry));
    }
    return object;
  }
  if (const auto* flag = tree.getIf<bool>()) return nlohmann::json(*flag);
  if (const auto* integer = tree.getIf<int64_t>()) return nlohmann::json(*integer);
  if (const auto* real = tree.getIf<double>()) return nlohmann::json(*real);
  if (const auto* text = tree.getIf<std::string>()) return nlohmann::json(*text);
  if (tree.getIf<stages::TensorTree::Null>() != nullptr) return nlohmann::json(nullptr);
  return absl::InvalidArgumentError("only dictionaries, numbers and strings travel without an edge");
}

}  // namespace

v1::StatusProto toProto(const Status& status) {
  v1::StatusProto proto;
  proto.set_code(static_cast<int32_t>(status.code()));
  proto.set_message(escapeNonAscii(messageOf(status).substr(0, kMessageBytesMax)));
  return proto;
}

Status fromProto(const v1::StatusProto& proto) {
  return makeStatus(static_cast<absl::StatusCode>(proto.code()), proto.message());
}

channel::ChannelSpec fromProto(const internal::v1::ChannelSpec& proto) {
  channel::ChannelSpec spec;
  spec.channel_id = proto.channel_id();
  spec.edge = proto.edge();
  spec.producer_epoch = Epoch(proto.producer_epoch());
  spec.consumer_epoch = Epoch(proto.consumer_epoch());
  spec.producer_ranks = proto.producer_ranks();
  spec.consumer_ranks = proto.consumer_ranks();
  if (proto.has_producer_shard_dim()) spec.producer_shard_dim = proto.producer_shard_dim();
  if (proto.has_consumer_shard_dim()) spec.consumer_shard_dim = proto.consumer_shard_dim();
  spec.producer_tokens = static_cast<TokenCut>(proto.producer_tokens());
  spec.consumer_tokens = static_cast<TokenCut>(proto.consumer_tokens());
  spec.slots = proto.slots();
  spec.profiles_max = proto.profiles_max();
  spec.unpooled_bytes_max = proto.unpooled_bytes_max();
  spec.progress_timeout = std::chrono::milliseconds(proto.progress_timeout_ms());
  return spec;
}

stages::SamplingParameters fromProto(const v1::JobParameters& proto) {
  stages::SamplingParameters parameters;
  parameters.prompt = proto.prompt();
  parameters.negative_prompt = proto.negative_prompt();
  parameters.frames = proto.frames();
  parameters.width = proto.width();
  parameters.height = proto.height();
  parameters.steps = proto.steps();
  parameters.guidance_scale = proto.has_guidance_scale() ? proto.guidance_scale() : 1.0;
  parameters.seed = proto.seed();
  parameters.fps = proto.fps();
  if (proto.has_flow_shift()) parameters.flow_shift = proto.flow_shift();
  return parameters;
}

v1::ModelLimits toProto(const stages::ModelLimits& limits) {
  v1::ModelLimits proto;
  setIf(limits.frame_step, [&](uint32_t value) { proto.set_frame_step(value); });
  setIf(limits.size_multiple, [&](uint32_t value) { proto.set_size_multiple(value); });
  setIf(limits.height_shards, [&](uint32_t value) { proto.set_height_shards(value); });
  setIf(limits.frames_max, [&](uint32_t value) { proto.set_frames_max(value); });
  setIf(limits.prompt_bytes_max, [&](uint32_t value) { proto.set_prompt_bytes_max(value); });
  const stages::SamplingParameters& defaults = limits.defaults;
  v1::JobParameters& known = *proto.mutable_defaults();
  if (!defaults.negative_prompt.empty()) known.set_negative_prompt(defaults.negative_prompt);
  if (defaults.frames != 0) known.set_frames(defaults.frames);
  if (defaults.width != 0) known.set_width(defaults.width);
  if (defaults.height != 0) known.set_height(defaults.height);
  if (defaults.steps != 0) known.set_steps(defaults.steps);
  if (defaults.guidance_scale != 1.0) known.set_guidance_scale(defaults.guidance_scale);
  if (defaults.fps != 0) known.set_fps(defaults.fps);
  if (defaults.flow_shift) known.set_flow_shift(*defaults.flow_shift);
  return proto;
}

internal::v1::Method toProto(const stages::MethodSpec& method) {
  internal::v1::Method proto;
  proto.set_name(method.name);
  for (const std::string& input : method.inputs)
    proto.add_inputs(input);
  for (const std::string& output : method.outputs)
    proto.add_outputs(output);
  proto.set_emits_frames(method.emits_frames);
  for (const auto& [key, cut] : method.token_inputs)
    (*proto.mutable_token_inputs())[key] = static_cast<internal::v1::TokenCut>(cut);
  for (const auto& [key, cut] : method.token_outputs)
    (*proto.mutable_token_outputs())[key] = static_cast<internal::v1::TokenCut>(cut);
  proto.mutable_sliced_input_dims()->Add(method.sliced_input_dims.begin(), method.sliced_input_dims.end());
  proto.mutable_sliced_output_dims()->Add(method.sliced_output_dims.begin(), method.sliced_output_dims.end());
  return proto;
}

internal::v1::TensorRef describe(const internal::v1::ArtifactRef& artifact, const stages::TensorTree& tree) {
  internal::v1::TensorRef ref;
  *ref.mutable_artifact() = artifact;
  if (const auto* dict = tree.getIf<stages::TensorTree::Dict>()) {
    for (const auto& entry : dict->entries)
      ref.add_keys(entry.first);
  }
  uint64_t bytes = 0;
  tree.forEachLeaf([&](const at::Tensor& tensor) {
    internal::v1::TensorShape& shape = *ref.add_tensors();
    shape.set_dtype(static_cast<v1::DType>(toDType(tensor.scalar_type())));
    for (const int64_t extent : tensor.sizes())
      shape.add_shape(extent);
    bytes += tensor.nbytes();
  });
  ref.set_bytes(bytes);
  return ref;
}

StatusOr<std::string> smallResult(const stages::TensorTree& tree) {
  const auto* dict = tree.getIf<stages::TensorTree::Dict>();
  if (dict != nullptr && dict->entries.empty()) return std::string();
  LATENTD_ASSIGN_OR_RETURN(const nlohmann::json json, toJson(tree));
  std::string text = json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  if (text.size() > kSmallResultBytesMax) {
    return absl::InvalidArgumentError("a result of " + std::to_string(text.size()) + " bytes needs an edge; at most " +
                                      std::to_string(kSmallResultBytesMax) + " travel without one");
  }
  return text;
}

}  // namespace latentd::worker
