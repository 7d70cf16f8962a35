#include "tools/plan/split.h"

namespace latentd::plan {

std::string toString(const Split& split) {
  const std::string degrees = toString(split.degrees);
  return degrees.empty() ? "one rank" : degrees;
}

}  // namespace latentd::plan
