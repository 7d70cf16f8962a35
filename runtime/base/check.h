#pragma once

#include <string_view>

namespace latentd {

// Prints the failed condition to standard error and aborts. The supervisor shows a worker's last lines and respawns it.
[[noreturn]] void checkFailed(const char* file, int line, const char* condition, std::string_view message);

}  // namespace latentd

// For what can only be false through a bug of ours; stays on in release builds. Peers' data and users' input are
// validated with a Status instead.
#define LATENTD_CHECK(condition, message)                              \
  do {                                                                 \
    if (!(condition)) [[unlikely]]                                     \
      ::latentd::checkFailed(__FILE__, __LINE__, #condition, message); \
  } while (false)

// For conditions that are costly to evaluate: debug and sanitizer builds only.
#ifdef LATENTD_DEBUG_CHECKS
#define LATENTD_DCHECK(condition, message) LATENTD_CHECK(condition, message)
#else
#define LATENTD_DCHECK(condition, message) \
  do {                                     \
  } while (false && (condition))
#endif
