#pragma once

#include <string>

#include "channel/backend.h"
#include "proto/channel.pb.h"
#include "runtime/base/status.h"

namespace latentd::channel {

// INVALID_ARGUMENT for a message beyond kFrameBytesMax.
StatusOr<OutFrame> encodeMessage(const v1::Message& message, Handle handle = {});
// INVALID_ARGUMENT for bytes that are no message, or one of no kind.
Status parseMessage(const Frame& frame, v1::Message& message);

// Why the channel ends when a message of the peer could not be handled: what it exported is gone, and so is it
// (UNAVAILABLE), this process has lost its device (DATA_LOSS), or it broke the protocol (INTERNAL).
Status unhandled(const std::string& peer, const Status& why);

void writeStatus(const Status& status, latentd::v1::StatusProto& message);  // long texts are cut
// A code that is none becomes INTERNAL.
Status readStatus(const latentd::v1::StatusProto& message);

}  // namespace latentd::channel
