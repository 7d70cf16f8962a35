#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "proto/api.pb.h"
#include "runtime/base/status.h"

namespace latentd::ctl {

// "mp4", "gif", "y4m", "png", "npy", "rgb": names, and the ends of file names. UNSPECIFIED is mp4, the API's default.
std::string formatName(v1::OutputFormat format);
std::optional<v1::OutputFormat> parseFormat(std::string_view name);
inline constexpr const char* kFormatNames = "mp4, gif, y4m, png, npy, rgb";

// INVALID_ARGUMENT when the output's name ends in another format than the one it will hold. Unknown ends are fine.
Status checkNameFits(const std::string& output, v1::OutputFormat format);

// The same for the file of a job that exists: an end that is none of ours is refused as well.
Status checkDownloadName(const std::string& output, v1::OutputFormat format);

// The format of a submission: --format, else the end of the output's name, else mp4. INVALID_ARGUMENT when neither
// names one of ours, they name different ones, or the output is a stream without --format.
StatusOr<v1::OutputFormat> chooseFormat(const std::string& format, const std::string& output);

}  // namespace latentd::ctl
