#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include <google/protobuf/duration.pb.h>
#include <google/protobuf/message.h>
#include <google/protobuf/timestamp.pb.h>

#include "proto/api.pb.h"
#include "runtime/supervisor/state_name.h"
#include "runtime/supervisor/timestamps.h"

// Values as people and programs read them.
namespace latentd::ctl {

std::string formatBytes(uint64_t bytes);                          // "512 B", "1.5 MiB"
std::string formatSeconds(double seconds);                        // "0.25 s", "12.3 s", "1:47", "1:02:03"
std::string formatNumber(double value);                           // "8", "2.5"
std::string formatTime(const google::protobuf::Timestamp& time);  // local, "2026-01-31 14:05:09"
using supervisor::stateName;                                      // "running", "warming up"
std::string statusCodeName(int code);                             // "UNAVAILABLE"

using supervisor::toSeconds;  // of the protocol's durations, and of its times since the epoch
google::protobuf::Duration toDuration(std::chrono::milliseconds duration);
// Since the epoch.
double nowSeconds();
// Start to finish, or to now while it runs.
double elapsedSeconds(const v1::StageProgress& stage, double now = nowSeconds());
// Of these, those in which it waited for its inputs: it is dispatched before they exist.
double inputWaitSeconds(const v1::StageProgress& stage, double now = nowSeconds());
// The rest.
double workSeconds(const v1::StageProgress& stage, double now = nowSeconds());
// The job's end cut it off.
bool wasCutOff(const v1::Job& job, const v1::StageProgress& stage);

// Why it was put back into the queue: "denoise rank 0 (wan.denoiser): died while running job ...".
std::string returnCause(const v1::Job& job);
// The same after what that was and how often: "restarted: ...", "displaced 2 times: ...". Empty: it never was.
std::string returnText(const v1::Job& job);

// Of a stage that a job waits for: "it runs another job"; empty: unknown.
std::string waitText(const v1::StageProgress& stage);

// How a job that did not succeed ended: "job 3f0c failed: UNAVAILABLE: denoise rank 0: ...", "job 3f0c was cancelled:
// cancelled on request".
std::string describeEnd(const v1::Job& job);

// "17 frames, 128x128, 16 steps, guidance 2.5, seed 42, 8 fps".
std::string describeParameters(const v1::JobParameters& parameters);

// One line of at most `columns` characters; control characters become blanks, and a cut shows as "...".
std::string oneLine(std::string_view text, size_t columns);

// Left-aligned columns, two blanks apart; the first row is the heading.
std::string formatTable(const std::vector<std::vector<std::string>>& rows);

// proto3 JSON with the fields' proto names, every plain field present, and the code of an error by its name, as the
// client's own errors have it: the stable form of --json.
std::string toJson(const google::protobuf::Message& message, bool pretty);

}  // namespace latentd::ctl
