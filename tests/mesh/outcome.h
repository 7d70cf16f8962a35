#pragma once

#include <functional>
#include <string>

#include "mesh/communication_error.h"

namespace latentd::mesh::testing {

// How it ended: "CODE message".
inline std::string outcomeOf(const std::function<void()>& operation) {
  try {
    operation();
  } catch (const CommunicationError& error) {
    return absl::StatusCodeToString(error.status().code()) + " " + messageOf(error.status());
  }
  return "OK";
}

}  // namespace latentd::mesh::testing
