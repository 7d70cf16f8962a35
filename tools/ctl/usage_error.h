#pragma once

#include <string>

#include <CLI/CLI.hpp>

namespace latentd::ctl {

// What is wrong with a command line, what may have been meant, and whose --help says more.
std::string describeUsageError(const CLI::App& app, const CLI::ParseError& error);

}  // namespace latentd::ctl
