#include "stages/noop/noop_options.h"

#include <sstream>
#include <utility>

namespace latentd::stages {
namespace {

using Options = NoopOptions;
using Table = OptionTable<Options>;

constexpr int64_t kBytesMax = int64_t{1} << 40;
constexpr int64_t kCountMax = 1'000'000;
constexpr int64_t kLeavesMax = 256;      // of the same order as the tensors of a real artifact
constexpr int64_t kRanksMax = 64;        // of a group
constexpr int64_t kTimeMax = 3'600'000;  // an hour

std::vector<std::string> splitAtCommas(const std::string& text) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, ',');) {
    if (!part.empty()) parts.push_back(part);
  }
  return parts;
}

Option<Options> textOption(std::string name, std::string Options::*field, std::string fallback, std::string meaning,
                           std::vector<std::string> matters_with) {
  return {{std::move(name), "any text", std::move(fallback), std::move(meaning), std::move(matters_with)},
          [=](Options& options, const std::string& text) {
            options.*field = text;
            return true;
          }};
}

void addPayload(Table& table) {
  const std::vector<std::string> source{"method.source"};
  const std::vector<std::string> makers{"method.source", "method.relay"};
  const std::vector<std::string> takers{"method.relay", "method.sink"};
  table.push_back(integerOption("bytes", &Options::bytes, 1, kBytesMax, "65536",
                                "Bytes of one output, all leaves together, rounded down to whole elements.", source));
  table.push_back(integerOption("bytes_per_frame", &Options::bytes_per_frame, 0, kBytesMax, "0",
                                "Added to bytes for each frame of the job.", source));
  table.push_back(integerOption("leaves", &Options::leaves, 1, kLeavesMax, "1", "Tensors in one output.", source));
  table.push_back(
      {{"dtype", "a dtype such as float32, bfloat16, uint8", "the group's", "Of the output's elements.", source},
       [](Options& options, const std::string& text) {
         options.dtype = parseDType(text).value_or(DType::kInvalid);
         return options.dtype != DType::kInvalid;
       }});
  table.push_back({{"input_keys", "names separated by commas", "payload", "What relay and sink need.", takers},
                   [](Options& options, const std::string& text) {
                     options.input_keys = splitAtCommas(text);
                     return !options.input_keys.empty();
                   }});
  table.push_back(
      {{"check", "true or false", "true", "Inputs are looked at: DATA_LOSS for another job's content.", takers},
       [](Options& options, const std::string& text) {
         options.check = text == "true";
         return text == "true" || text == "false";
       }});
  table.push_back(textOption("output_key", &Options::output_key, "payload", "What source and relay return.", makers));
  table.push_back(integerOption("frames", &Options::frames, 0, kCountMax, "0",
                                "What sink emits; 0 takes the job's frames.", {"method.sink"}));
}

void addEffort(Table& table) {
  table.push_back(integerOption("steps", &Options::steps, 0, kCountMax, "1", "Per run; 0 takes the job's steps."));
  table.push_back(integerOption("step_ms", &Options::step_time, 0, kTimeMax, "0",
                                "Milliseconds of processor time that a step burns."));
  table.push_back(integerOption(
      "sum_bytes", &Options::sum_bytes, 0, kBytesMax, "0",
      "Of a tensor that the ranks of the group sum up in each step and check; 0: none.",
      {"parallel.cfg", "parallel.ring", "parallel.ulysses", "parallel.spatial", "parallel.pp", "parallel.tp"}));
  table.push_back(integerOption("load_ms", &Options::load_time, 0, kTimeMax, "0", "The same for the load."));
  table.push_back(integerOption("warm_up_ms", &Options::warm_up_time, 0, kTimeMax, "0", "The same for the warm-up."));
  table.push_back(integerOption("weight_bytes", &Options::weight_bytes, 0, kBytesMax, "0",
                                "Memory that the load takes and keeps."));
}

void addFaults(Table& table) {
  table.push_back(integerOption("fail_at_step", &Options::fail_at_step, -1, kCountMax, "-1",
                                "Step that fails with INTERNAL; -1: none."));
  table.push_back(integerOption("crash_at_step", &Options::crash_at_step, -1, kCountMax, "-1",
                                "Step that ends the process with SIGSEGV; -1: none."));
  table.push_back(integerOption("allocate_bytes", &Options::allocate_bytes, 0, kBytesMax, "0",
                                "Taken and touched in step 0, given back at the end of the run."));
  table.push_back(textOption("only_prompt", &Options::only_prompt, "",
                             "Faults and allocation hit only jobs whose prompt contains this.",
                             {"options.fail_at_step", "options.crash_at_step", "options.allocate_bytes"}));
  table.push_back(integerOption("only_rank", &Options::only_rank, -1, kRanksMax - 1, "-1",
                                "Faults, allocation and load_ms hit only this rank of the group; -1: every rank.",
                                {"options.fail_at_step", "options.crash_at_step", "options.allocate_bytes",
                                 "options.load_ms", "options.fail_load"}));
  table.push_back({{"fail_load", "true or false", "false", "The load fails with FAILED_PRECONDITION."},
                   [](Options& options, const std::string& text) {
                     options.fail_load = text == "true";
                     return text == "true" || text == "false";
                   }});
}

}  // namespace

OptionTable<NoopOptions> noopOptionTable() {
  Table table;
  addPayload(table);
  addEffort(table);
  addFaults(table);
  return table;
}

StatusOr<NoopOptions> parseNoopOptions(const std::map<std::string, std::string>& options, DType group_dtype) {
  NoopOptions defaults;
  defaults.dtype = group_dtype;
  return parseOptions("noop", noopOptionTable(), options, std::move(defaults));
}

}  // namespace latentd::stages
