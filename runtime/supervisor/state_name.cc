#include "runtime/supervisor/state_name.h"

#include <cctype>
#include <string_view>

namespace latentd::supervisor {
namespace {

// "JOB_STATE_WARMING_UP" after the prefix, lower case, blanks for underscores.
std::string enumWords(std::string_view name, std::string_view prefix) {
  if (name.starts_with(prefix)) name.remove_prefix(prefix.size());
  std::string words;
  for (const char c : name)
    words += c == '_' ? ' ' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return words;
}

}  // namespace

std::string stateName(v1::JobState state) { return enumWords(v1::JobState_Name(state), "JOB_STATE_"); }
std::string stateName(v1::WorkerState state) { return enumWords(v1::WorkerState_Name(state), "WORKER_STATE_"); }

}  // namespace latentd::supervisor
