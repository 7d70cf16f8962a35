#pragma once

#include <optional>
#include <string>

#include <CLI/CLI.hpp>

namespace latentd::ctl {

// The completion script of "bash", "zsh" or "fish" for a command line, made from its own description so that the two
// cannot differ. Nothing for another shell.
std::optional<std::string> completionScript(const CLI::App& app, const std::string& shell);

}  // namespace latentd::ctl
