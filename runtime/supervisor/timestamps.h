#pragma once

#include <chrono>

#include <google/protobuf/duration.pb.h>
#include <google/protobuf/timestamp.pb.h>

#include "runtime/base/clock.h"

// Protobuf's times and ours.
namespace latentd::supervisor {

inline google::protobuf::Timestamp toTimestamp(Clock::WallTime time) {
  const int64_t nanos = time.time_since_epoch().count();
  google::protobuf::Timestamp timestamp;
  timestamp.set_seconds(nanos / std::nano::den);
  timestamp.set_nanos(static_cast<int32_t>(nanos % std::nano::den));
  return timestamp;
}

// Since the epoch.
inline double toSeconds(Clock::WallTime time) { return std::chrono::duration<double>(time.time_since_epoch()).count(); }
inline double toSeconds(const google::protobuf::Timestamp& time) {
  return static_cast<double>(time.seconds()) + time.nanos() * 1e-9;
}
inline double toSeconds(const google::protobuf::Duration& duration) {
  return static_cast<double>(duration.seconds()) + duration.nanos() * 1e-9;
}

inline google::protobuf::Duration toDuration(Clock::Duration duration) {
  google::protobuf::Duration proto;
  proto.set_seconds(duration.count() / std::nano::den);
  proto.set_nanos(static_cast<int32_t>(duration.count() % std::nano::den));
  return proto;
}

// Durations beyond `most` become `most`: a client may send 10,000 years, which no clock of ours holds.
inline std::chrono::milliseconds toMilliseconds(const google::protobuf::Duration& duration,
                                                std::chrono::milliseconds most) {
  if (duration.seconds() >= most.count() / std::milli::den) return most;
  return std::chrono::seconds(duration.seconds()) +
         std::chrono::ceil<std::chrono::milliseconds>(std::chrono::nanoseconds(duration.nanos()));
}

// Not negative; what a worker measured.
inline google::protobuf::Duration secondsToDuration(double seconds) {
  return toDuration(
      std::chrono::duration_cast<Clock::Duration>(std::chrono::duration<double>(seconds > 0 ? seconds : 0)));
}

}  // namespace latentd::supervisor
