#pragma once

#include <string_view>

namespace latentd::stages {

// Whether a text holds neighbours that people do not write, but that appear when UTF-8 is shown in a single-byte
// charset: "é" becomes "Ã©", a capital letter before a sign. Says when a repair may be tried, and when to stop.
bool looksLikeMojibake(std::u32string_view text);

}  // namespace latentd::stages
