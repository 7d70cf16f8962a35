#include "channel/channel.h"

#include <string>

#include "channel/limits.h"

namespace latentd::channel {
namespace {

Status inRange(std::string_view field, uint64_t value, uint64_t least, uint64_t most) {
  if (value >= least && value <= most) return absl::OkStatus();
  return makeStatus(absl::StatusCode::kInvalidArgument, "channel " + std::string(field) + " is " +
                                                            std::to_string(value) + ", not " + std::to_string(least) +
                                                            " to " + std::to_string(most));
}

Status checkDim(std::string_view field, const std::optional<int32_t>& dim) {
  constexpr auto kMost = static_cast<int32_t>(kDimensionsMax);
  if (!dim || (*dim >= -kMost && *dim < kMost)) return absl::OkStatus();
  return makeStatus(absl::StatusCode::kInvalidArgument, "channel " + std::string(field) + " is " +
                                                            std::to_string(*dim) + ", not " + std::to_string(-kMost) +
                                                            " to " + std::to_string(kMost - 1));
}

Status checkCut(std::string_view field, TokenCut cut) {
  if (cut <= kTokenCutMax) return absl::OkStatus();
  return makeStatus(absl::StatusCode::kInvalidArgument, "channel " + std::string(field) + " is " +
                                                            std::to_string(static_cast<int>(cut)) +
                                                            ", not none (0), tokens (1) or rows (2)");
}

}  // namespace

Status validate(const ChannelSpec& spec) {
  LATENTD_RETURN_IF_ERROR(inRange("edge name length", spec.edge.size(), 1, kEdgeNameBytesMax));
  LATENTD_RETURN_IF_ERROR(inRange("producer_ranks", spec.producer_ranks, 1, kRanksMax));
  LATENTD_RETURN_IF_ERROR(inRange("consumer_ranks", spec.consumer_ranks, 1, kRanksMax));
  LATENTD_RETURN_IF_ERROR(inRange("slots", spec.slots, 1, kSlotsMax));
  LATENTD_RETURN_IF_ERROR(inRange("profiles_max", spec.profiles_max, 0, kProfilesMax));
  LATENTD_RETURN_IF_ERROR(inRange("unpooled_bytes_max", spec.unpooled_bytes_max, 0, kTensorBytesMax));
  LATENTD_RETURN_IF_ERROR(
      inRange("progress_timeout in ms", static_cast<uint64_t>(spec.progress_timeout.count()), 1, 86'400'000));
  LATENTD_RETURN_IF_ERROR(checkDim("producer_shard_dim", spec.producer_shard_dim));
  LATENTD_RETURN_IF_ERROR(checkDim("consumer_shard_dim", spec.consumer_shard_dim));
  LATENTD_RETURN_IF_ERROR(checkCut("producer_tokens", spec.producer_tokens));
  return checkCut("consumer_tokens", spec.consumer_tokens);
}

uint32_t publishingRanks(const ChannelSpec& spec) {
  return spec.producer_shard_dim || spec.producer_tokens != TokenCut::kNone ? spec.producer_ranks : 1;
}

}  // namespace latentd::channel
