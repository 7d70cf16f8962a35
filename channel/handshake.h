#pragma once

#include <cstdint>

#include "channel/channel.h"
#include "proto/channel.pb.h"

namespace latentd::channel {

// What a consumer rank says first to a producer rank.
v1::Hello makeHello(const ChannelSpec& spec, Rank producer, Rank consumer);

// The consumer's rank if the hello is for this channel, epoch and rank; FAILED_PRECONDITION naming the first field that
// differs, its value and the expected one.
StatusOr<Rank> checkHello(const v1::Hello& hello, const ChannelSpec& spec, Rank producer);

Status checkWelcome(const v1::Welcome& welcome, const ChannelSpec& spec);

}  // namespace latentd::channel
