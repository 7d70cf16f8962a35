#include "channel/handshake.h"

#include <optional>
#include <string>

#include "channel/control_block.h"
#include "channel/limits.h"

namespace latentd::channel {
namespace {

std::string text(uint64_t value) { return std::to_string(value); }
std::string text(const std::string& value) { return "\"" + value + "\""; }
std::string text(const std::optional<int32_t>& value) { return value ? std::to_string(*value) : "none"; }

template <class Value>
Status expect(std::string_view field, const Value& got, const Value& wanted) {
  if (got == wanted) return absl::OkStatus();
  return makeStatus(absl::StatusCode::kFailedPrecondition,
                    "handshake: " + std::string(field) + " is " + text(got) + ", this side has " + text(wanted));
}

}  // namespace

v1::Hello makeHello(const ChannelSpec& spec, Rank producer, Rank consumer) {
  v1::Hello hello;
  hello.set_version(kProtocolVersion);
  hello.set_channel_id(spec.channel_id);
  hello.set_edge(spec.edge);
  hello.set_producer_epoch(spec.producer_epoch.value);
  hello.set_consumer_epoch(spec.consumer_epoch.value);
  hello.set_producer_ranks(spec.producer_ranks);
  hello.set_consumer_ranks(spec.consumer_ranks);
  hello.set_producer_rank(producer.value);
  hello.set_consumer_rank(consumer.value);
  if (spec.producer_shard_dim) hello.set_producer_shard_dim(*spec.producer_shard_dim);
  if (spec.consumer_shard_dim) hello.set_consumer_shard_dim(*spec.consumer_shard_dim);
  hello.set_producer_tokens(static_cast<uint32_t>(spec.producer_tokens));
  hello.set_consumer_tokens(static_cast<uint32_t>(spec.consumer_tokens));
  hello.set_slots(spec.slots);
  hello.set_profiles_max(spec.profiles_max);
  return hello;
}

StatusOr<Rank> checkHello(const v1::Hello& hello, const ChannelSpec& spec, Rank producer) {
  const v1::Hello wanted = makeHello(spec, producer, Rank(0));
  LATENTD_RETURN_IF_ERROR(expect<uint64_t>("version", hello.version(), wanted.version()));
  LATENTD_RETURN_IF_ERROR(expect<uint64_t>("channel_id", hello.channel_id(), wanted.channel_id()));
  LATENTD_RETURN_IF_ERROR(expect<std::string>("edge", hello.edge(), wanted.edge()));
  LATENTD_RETURN_IF_ERROR(expect<uint64_t>("producer_epoch", hello.producer_epoch(), wanted.producer_epoch()));
  LATENTD_RETURN_IF_ERROR(expect<uint64_t>("consumer_epoch", hello.consumer_epoch(), wanted.consumer_epoch()));
  LATENTD_RETURN_IF_ERROR(expect<uint64_t>("producer_ranks", hello.producer_ranks(), wanted.producer_ranks()));
  LATENTD_RETURN_IF_ERROR(expect<uint64_t>("consumer_ranks", hello.consumer_ranks(), wanted.consumer_ranks()));
  LATENTD_RETURN_IF_ERROR(expect<uint64_t>("producer_rank", hello.producer_rank(), wanted.producer_rank()));
  LATENTD_RETURN_IF_ERROR(expect<uint64_t>("slots", hello.slots(), wanted.slots()));
  LATENTD_RETURN_IF_ERROR(expect<uint64_t>("profiles_max", hello.profiles_max(), wanted.profiles_max()));
  const auto dim = [](bool present, int32_t value) { return present ? std::optional<int32_t>(value) : std::nullopt; };
  LATENTD_RETURN_IF_ERROR(expect("producer_shard_dim", dim(hello.has_producer_shard_dim(), hello.producer_shard_dim()),
                                 spec.producer_shard_dim));
  LATENTD_RETURN_IF_ERROR(expect("consumer_shard_dim", dim(hello.has_consumer_shard_dim(), hello.consumer_shard_dim()),
                                 spec.consumer_shard_dim));
  LATENTD_RETURN_IF_ERROR(expect<uint64_t>("producer_tokens", hello.producer_tokens(), wanted.producer_tokens()));
  LATENTD_RETURN_IF_ERROR(expect<uint64_t>("consumer_tokens", hello.consumer_tokens(), wanted.consumer_tokens()));
  if (hello.consumer_rank() >= spec.consumer_ranks) {
    return makeStatus(absl::StatusCode::kFailedPrecondition, "handshake: consumer_rank is " +
                                                                 text(uint64_t{hello.consumer_rank()}) + " of " +
                                                                 text(uint64_t{spec.consumer_ranks}));
  }
  return Rank(hello.consumer_rank());
}

Status checkWelcome(const v1::Welcome& welcome, const ChannelSpec& spec) {
  LATENTD_RETURN_IF_ERROR(expect<uint64_t>("version", welcome.version(), kProtocolVersion));
  return expect<uint64_t>("control_bytes", welcome.control_bytes(), ControlBlock::bytesFor(spec));
}

}  // namespace latentd::channel
