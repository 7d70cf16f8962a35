#pragma once

#include <optional>
#include <string>

#include <CLI/CLI.hpp>

#include "runtime/base/status.h"
#include "tools/plan/search.h"

namespace latentd::plan {

// `latentd plan` as given; values are checked by run(), with the rules of the topology file.
struct Arguments {
  std::string model;
  std::string gpus;
  std::string gpu = "h200";
  std::string link;
  std::string memory;
  std::string gpus_per_host = "8";
  std::string size = "832x480";
  std::string frames = "81";
  std::string steps = "50";
  std::string guidance = "5";
  std::string dtype = "bfloat16";
  std::string goal = "latency";
  bool json = false;
  std::string yaml;
};

// The subcommand of latentd; `arguments` outlives the app.
CLI::App* addCommand(CLI::App& app, Arguments& arguments);

// INVALID_ARGUMENT and NOT_FOUND name the flag or the model's file.
StatusOr<Request> makeRequest(const Arguments& arguments);

// What to print. Writes the topology where --yaml names a file: one that is not there yet.
StatusOr<std::string> run(const Arguments& arguments);

}  // namespace latentd::plan
