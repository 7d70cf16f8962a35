#include "channel/message.h"

#include <string>
#include <utility>

#include "channel/limits.h"

namespace latentd::channel {

StatusOr<OutFrame> encodeMessage(const v1::Message& message, Handle handle) {
  OutFrame frame;
  frame.fds = std::move(handle.fds);
  frame.keep = std::move(handle.keep);
  if (message.ByteSizeLong() > kFrameBytesMax) {
    return makeStatus(
        absl::StatusCode::kInvalidArgument,
        "a message of " + std::to_string(message.ByteSizeLong()) + " bytes is longer than the " +
            std::to_string(kFrameBytesMax) +
            " of a frame: put long strings and many tensors of a stage's output into fewer, larger tensors");
  }
  frame.bytes = message.SerializeAsString();
  return frame;
}

Status parseMessage(const Frame& frame, v1::Message& message) {
  if (message.ParseFromString(frame.bytes) && message.kind_case() != v1::Message::KIND_NOT_SET) return absl::OkStatus();
  return makeStatus(absl::StatusCode::kInvalidArgument,
                    "a frame of " + std::to_string(frame.bytes.size()) + " bytes is no message of this protocol");
}

Status unhandled(const std::string& peer, const Status& why) {
  switch (why.code()) {
    case absl::StatusCode::kUnavailable:
      return makeStatus(why.code(), peer + " is gone: " + messageOf(why));
    case absl::StatusCode::kDataLoss:
      return why;
    default:
      return makeStatus(absl::StatusCode::kInternal, peer + " broke the protocol: " + messageOf(why));
  }
}

void writeStatus(const Status& status, latentd::v1::StatusProto& message) {
  message.set_code(static_cast<int>(status.code()));
  std::string text = messageOf(status);
  if (text.size() > kStatusTextMax) {
    // Not in the middle of a character: the field must be valid UTF-8.
    size_t end = kStatusTextMax;
    while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80)
      --end;
    text.resize(end);
  }
  message.set_message(std::move(text));
}

Status readStatus(const latentd::v1::StatusProto& message) {
  const bool known = message.code() >= 0 && message.code() <= static_cast<int>(absl::StatusCode::kUnauthenticated);
  return makeStatus(known ? static_cast<absl::StatusCode>(message.code()) : absl::StatusCode::kInternal,
                    message.message());
}

}  // namespace latentd::channel
