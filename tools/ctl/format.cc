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

StatusOr<v1::OutputFormat> chooseFormat(const std::string& format, const std::string& output) {
  if (!format.empty()) {
    if (const auto known = parseFormat(format)) return *known;
    return absl::InvalidArgumentError("--format " + format + ": is none of " + kFormatNames);
  }
  if (output.empty()) return v1::OUTPUT_FORMAT_MP4;
  if (output == "-")
    return absl::InvalidArgumentError("-o -: say which format to stream with --format (mp4, y4m, ...)");
  const std::string extension = std::filesystem::path(output).extension().string();
  const auto known = parseFormat(extension.empty() ? extension : extension.substr(1));
  if (known) return *known;
  return absl::InvalidArgumentError("-o " + output + ": the name ends in none of " + kFormatNames +
                                    "; rename it or add --format");
}

}  // namespace latentd::ctl
