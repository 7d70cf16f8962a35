#pragma once

#include <cstdint>
#include <string>
#include <vector>

// Amounts as people read them.
namespace latentd::plan {

std::string gibText(uint64_t bytes);      // "12.4 GiB"
std::string trafficText(double bytes);    // "1.25 GB", "310 MB", "0"
std::string secondsText(double seconds);  // "23.5 ms", "1.20 s", "12.3 min"
std::string rateText(double rate);        // "12.3"
// Rounded as those tell them: what reads the same is the same.
double shownSeconds(double seconds);
double shownRate(double rate);
// Columns two blanks apart, the first of each row to the left and the others to the right.
std::string tableText(const std::vector<std::vector<std::string>>& rows);

}  // namespace latentd::plan
