#pragma once

#include <charconv>
#include <limits>
#include <string>
#include <system_error>

#include <CLI/CLI.hpp>

namespace latentd::ctl {

// An option's value is a whole number from `least` on. CLI11 itself takes "-1" and what does not fit for the largest
// number.
template <class T>
CLI::Validator wholeNumber(T least) {
  const auto check = [least](const std::string& text) {
    T value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    const bool whole = end == text.data() + text.size();
    if (error == std::errc() && whole && value >= least) return std::string();
    const bool large = error == std::errc::result_out_of_range && whole;
    return "'" + text + "' is not a whole number from " + std::to_string(least) +
           (large ? " to " + std::to_string(std::numeric_limits<T>::max()) : "");
  };
  return CLI::Validator(check, "");
}

inline CLI::Validator realNumber() {
  const auto check = [](const std::string& text) {
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    const bool number = error == std::errc() && end == text.data() + text.size();
    return number ? std::string() : "'" + text + "' is not a number";
  };
  return CLI::Validator(check, "");
}

}  // namespace latentd::ctl
