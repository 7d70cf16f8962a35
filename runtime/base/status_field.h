#pragma once

#include <string>
#include <string_view>

#include "runtime/base/status.h"

// Which field of a request, or key of a file, a status is about. Travels as a payload, so that whoever knows where the
// field was written can say so; the message names it for people all the same.
namespace latentd {

// The status with its field; one that has a field already, or is OK, is returned as it is.
Status atField(Status status, std::string_view field);
// Empty: it names none.
std::string fieldOf(const Status& status);

}  // namespace latentd
