#pragma once

#include "runtime/base/status.h"

namespace latentd {

// For the end of a program that prints its results: not OK if some of them did not leave it, as where the disk is full.
Status flushOutput();

}  // namespace latentd
