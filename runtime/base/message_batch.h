#pragma once

#include <cstddef>
#include <deque>
#include <utility>

namespace latentd {

// What waits for a stream leaves as one message: each message costs both sides a wake-up and a pass through gRPC. A
// batch ends with the message that reaches one of the bounds. gRPC refuses 4 MiB; the largest single message, a trace
// of 20,000 spans, has one.
constexpr int kBatchMessagesMax = 64;
constexpr size_t kBatchBytesMax = size_t{1} << 20;

// Moves messages from the front of the queue into a repeated field, in order, at least one if there is any.
template <class Message, class RepeatedField>
void moveBatch(std::deque<Message>& queue, RepeatedField& batch) {
  size_t bytes = 0;
  for (int count = 0; !queue.empty() && count < kBatchMessagesMax && bytes < kBatchBytesMax; ++count) {
    bytes += queue.front().ByteSizeLong();
    *batch.Add() = std::move(queue.front());
    queue.pop_front();
  }
}

}  // namespace latentd
