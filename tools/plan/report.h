#pragma once

#include <cstddef>
#include <string>

#include "tools/plan/search.h"

namespace latentd::plan {

// What `latentd plan` prints. At most `shown` candidates in the text; the JSON has all, and every rejected split.
std::string reportText(const Request& request, const Plan& plan, size_t shown);
std::string reportJson(const Request& request, const Plan& plan);

}  // namespace latentd::plan
