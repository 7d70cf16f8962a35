#pragma once

#include <array>
#include <span>
#include <string_view>

namespace latentd::stages {

// One named character reference of HTML5, without its "&". Some old names also exist without the ";".
struct HtmlEntity {
  std::string_view name;
  std::array<char32_t, 2> value;  // the second is 0 where there is one character
};

// All of them, sorted by name.
std::span<const HtmlEntity> htmlEntities();

}  // namespace latentd::stages
