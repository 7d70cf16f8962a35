#pragma once

#include <string>
#include <string_view>

namespace latentd::stages {

// What a browser shows for the character references of a text: numeric and named ones, also old names without ";"
// ("&eacute", "&notit;" is "¬it;"). Numbers that no document may use become U+FFFD, nothing, or what Windows-1252 has.
std::u32string unescapeHtml(std::u32string_view text);

// Only what is clearly meant as a reference: those that end in ";", and lower-case names written in capitals
// ("&NTILDE;"). "this&not that" stays. References to "&" that make references to "&" are resolved to the last.
std::u32string unescapeCertainHtml(std::u32string_view text);

}  // namespace latentd::stages
