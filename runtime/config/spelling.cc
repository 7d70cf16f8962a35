#include "runtime/config/spelling.h"

#include <algorithm>
#include <utility>

namespace latentd::config {
namespace {

constexpr size_t kSuggestionsMax = 3;

// Words come from a file: the cost of the distance is bounded by comparing no more than this much of them.
constexpr size_t kComparedBytesMax = 64;

// Values are shown in errors: no more of one than this.
constexpr size_t kShownBytesMax = 80;

// Optimal string alignment: insert, delete, replace, swap of neighbours.
size_t editDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> before_previous(b.size() + 1), previous(b.size() + 1), current(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j)
    previous[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    current[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = previous[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      current[j] = std::min({previous[j] + 1, current[j - 1] + 1, replaced});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) current[j] = std::min(current[j], before_previous[j - 2] + 1);
    }
    std::swap(before_previous, previous);
    std::swap(previous, current);
  }
  return previous[b.size()];
}

}  // namespace

std::vector<std::string> nearest(std::string_view word, const std::vector<std::string>& candidates) {
  word = word.substr(0, kComparedBytesMax);
  const size_t distance_max = std::max<size_t>(1, word.size() / 3);
  std::vector<std::pair<size_t, std::string>> ranked;
  for (const std::string& candidate : candidates) {
    const size_t distance = editDistance(word, std::string_view(candidate).substr(0, kComparedBytesMax));
    if (distance <= distance_max) ranked.emplace_back(distance, candidate);
  }
  std::stable_sort(ranked.begin(), ranked.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  if (ranked.size() > kSuggestionsMax) ranked.resize(kSuggestionsMax);
  std::vector<std::string> words;
  for (auto& entry : ranked)
    words.push_back(std::move(entry.second));
  return words;
}

std::string shown(std::string_view text) {
  if (text.size() <= kShownBytesMax) return "'" + std::string(text) + "'";
  return "'" + std::string(text.substr(0, kShownBytesMax)) + "...' (" + std::to_string(text.size()) + " bytes)";
}

std::string quotedList(const std::vector<std::string>& words) {
  std::string text;
  for (size_t i = 0; i < words.size(); ++i) {
    if (i > 0) text += i + 1 == words.size() ? " or " : ", ";
    text += "'" + words[i] + "'";
  }
  return text;
}

}  // namespace latentd::config
