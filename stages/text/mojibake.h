#pragma once

#include <string>
#include <string_view>

namespace latentd::stages {

// Undoes UTF-8 that was read in a single-byte charset, as often as it happened: the whole text where one charset
// explains all of it, else the runs that are clearly so. Also where a no-break space became a space or single bytes
// were lost. Text that does not look broken stays.
std::u32string repairMojibake(std::u32string text);

// U+0080 to U+009F become what Windows-1252 has at those bytes.
std::u32string replaceC1Controls(std::u32string text);

}  // namespace latentd::stages
