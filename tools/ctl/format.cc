#include "tools/ctl/format.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <utility>

namespace latentd::ctl {
namespace {

constexpr std::array<std::pair<std::string_view, v1::OutputFormat>, 6> kFormats{{
    {"mp4", v1::OUTPUT_FORMAT_MP4},
    {"gif", v1::OUTPUT_FORMAT_GIF},
    {"y4m", v1::OUTPUT_FORMAT_Y4M},
    {"png", v1::OUTPUT_FORMAT_PNG},
    {"npy", v1::OUTPUT_FORMAT_NPY},
    {"rgb", v1::OUTPUT_FORMAT_RGB24},
}};

std::optional<v1::OutputFormat> formatOfName(const std::string& output) {
  const std::string extension = std::filesystem::path(output).extension().string();
  return extension.empty() ? std::nullopt : parseFormat(extension.substr(1));
}

}  // namespace

std::string formatName(v1::OutputFormat format) {
  for (const auto& [name, value] : kFormats) {
    if (value == format) return std::string(name);
  }
  return "mp4";
}

std::optional<v1::OutputFormat> parseFormat(std::string_view name) {
  std::string lower(name);
  std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) { return std::tolower(c); });
  for (const auto& [known, value] : kFormats) {
    if (known == lower) return value;
  }
  return std::nullopt;
}

Status checkNameFits(const std::string& output, v1::OutputFormat format) {
  const std::optional<v1::OutputFormat> named = formatOfName(output);
  if (!named || *named == format) return absl::OkStatus();
  return absl::InvalidArgumentError("-o " + output + ": the name says " + formatName(*named) +
                                    ", but the result is to be " + formatName(format) + "; end the name in ." +
                                    formatName(format) + ", or choose the format that it says");
}

Status checkDownloadName(const std::string& output, v1::OutputFormat format) {
  LATENTD_RETURN_IF_ERROR(checkNameFits(output, format));
  if (formatOfName(output) || std::filesystem::path(output).extension().empty()) return absl::OkStatus();
  return absl::InvalidArgumentError("-o " + output + ": the name ends in none of " + kFormatNames + "; the result is " +
                                    formatName(format) + ": end the name in ." + formatName(format) +
                                    ", or stream it with -o -");
}

StatusOr<v1::OutputFormat> chooseFormat(const std::string& format, const std::string& output) {
  if (!format.empty()) {
    const std::optional<v1::OutputFormat> known = parseFormat(format);
    if (!known) return absl::InvalidArgumentError("--format " + format + ": is none of " + kFormatNames);
    LATENTD_RETURN_IF_ERROR(checkNameFits(output, *known));
    return *known;
  }
  if (output.empty()) return v1::OUTPUT_FORMAT_MP4;
  if (output == "-")
    return absl::InvalidArgumentError("-o -: say which format to stream with --format (mp4, y4m, ...)");
  if (const auto known = formatOfName(output)) return *known;
  return absl::InvalidArgumentError("-o " + output + ": the name ends in none of " + kFormatNames +
                                    "; rename it or add --format");
}

}  // namespace latentd::ctl
