#pragma once

#include <string>
#include <vector>

#include "proto/api.pb.h"

namespace latentd::ctl {

// A job's trace in the trace-event format of Chrome and Perfetto: the daemon and each rank are processes, a rank's
// commands and its data plane are threads, and arrows lead from each publication to the copies of it. Times are
// microseconds from the first span.
std::string toTraceEvents(const std::string& job, const std::vector<v1::TraceTrack>& tracks);

}  // namespace latentd::ctl
