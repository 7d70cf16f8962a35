#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "proto/api.pb.h"
#include "runtime/base/flight_recorder.h"

// What a group's ranks recorded of their operations, for people.
namespace latentd::supervisor {

// Who waits in which operation for whom: "rank 1 waits in all_to_all 12 of ulysses for 3.21 s, which rank 0 has not
// begun". Of several the one that waits longest. Where every rank has begun it, who has not finished what others have;
// where none has, who began it last. Empty while nobody waits.
std::string verdictOf(const FlightRecorder& recorder, int64_t now_ns);

// For the log of a failure: the verdict, then a line for each rank with the last `count` operations that it began.
std::vector<std::string> reportLines(const FlightRecorder& recorder, size_t count, int64_t now_ns);

// Verdict and ranks.
void fill(const FlightRecorder& recorder, int64_t now_ns, v1::GroupRecord& record);

}  // namespace latentd::supervisor
