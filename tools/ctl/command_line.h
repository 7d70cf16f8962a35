#pragma once

#include <string>

namespace latentd::ctl {

// Parses the arguments and runs the command. endpoint: the one without --endpoint. Returns the exit code.
int runCommandLine(int argc, char** argv, const std::string& endpoint);

}  // namespace latentd::ctl
