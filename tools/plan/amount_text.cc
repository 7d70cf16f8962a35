#include "tools/plan/amount_text.h"

#include <fmt/format.h>

#include <algorithm>

namespace latentd::plan {
namespace {

constexpr double kGiB = 1 << 30;
constexpr double kMega = 1e6;
constexpr double kGiga = 1e9;

struct Unit {
  double seconds;
  int digits;
  const char* name;
};

Unit unitOf(double seconds) {
  if (seconds < 1) return {1e-3, 1, "ms"};
  if (seconds < 300) return {1, 2, "s"};
  return {60, 1, "min"};
}

}  // namespace

std::string gibText(uint64_t bytes) { return fmt::format("{:.1f} GiB", static_cast<double>(bytes) / kGiB); }

std::string trafficText(double bytes) {
  if (bytes == 0) return "0";
  if (bytes >= kGiga) return fmt::format("{:.2f} GB", bytes / kGiga);
  return fmt::format("{:.{}f} MB", bytes / kMega, bytes >= 10 * kMega ? 0 : 2);
}

std::string secondsText(double seconds) {
  const Unit unit = unitOf(seconds);
  return fmt::format("{:.{}f} {}", seconds / unit.seconds, unit.digits, unit.name);
}

std::string rateText(double rate) { return fmt::format("{:.1f}", rate); }

double shownSeconds(double seconds) {
  const Unit unit = unitOf(seconds);
  return std::stod(fmt::format("{:.{}f}", seconds / unit.seconds, unit.digits)) * unit.seconds;
}

double shownRate(double rate) { return std::stod(rateText(rate)); }

std::string tableText(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths;
  for (const std::vector<std::string>& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t column = 0; column < row.size(); ++column)
      widths[column] = std::max(widths[column], row[column].size());
  }
  std::string text;
  for (const std::vector<std::string>& row : rows) {
    std::string line;
    for (size_t column = 0; column < row.size(); ++column) {
      line += column == 0 ? fmt::format("{:<{}}", row[column], widths[column])
                          : fmt::format("  {:>{}}", row[column], widths[column]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

}  // namespace latentd::plan
