#include "runtime/base/token_cut.h"

namespace latentd {

std::string_view toString(TokenCut cut) {
  switch (cut) {
    case TokenCut::kNone:
      return "none";
    case TokenCut::kTokens:
      return "tokens";
    case TokenCut::kRows:
      return "rows";
  }
  return "invalid";
}

}  // namespace latentd
