#pragma once

#include <string>

namespace latentd::stages {

// Mends text the way the reference's environment does before it tokenizes: character references that are clearly
// meant, mojibake, C1 controls, Latin ligatures, full and half width forms, curly quotes, line breaks, terminal
// escapes, control characters, NFC; again and again until nothing changes. Line by line, so that one broken line does
// not stop the others; references are left alone from the first line on that has a "<" (it may be HTML).
std::u32string repairText(const std::u32string& text);

}  // namespace latentd::stages
