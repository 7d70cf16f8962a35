#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace latentd::config {

// The candidates that `word` may be a misspelling of, nearest first, at most three. Letters swapped, missing, extra
// or changed count one each; a third of the word may be wrong.
std::vector<std::string> nearest(std::string_view word, const std::vector<std::string>& candidates);

// A value of a file in a message: "'a'"; of a long one the beginning, and how long it is.
std::string shown(std::string_view text);

// "'a', 'b' or 'c'"
std::string quotedList(const std::vector<std::string>& words);

}  // namespace latentd::config
