#pragma once

#include "mesh/scalar_type.h"

namespace latentd::stages {

using latentd::toDType;
using latentd::toScalarType;

}  // namespace latentd::stages
