#pragma once

#include <string>

#include "proto/api.pb.h"

namespace latentd::supervisor {

// As people read them: "cancelling", "warming up".
std::string stateName(v1::JobState state);
std::string stateName(v1::WorkerState state);

}  // namespace latentd::supervisor
