#include "tools/ctl/command_line.h"

#include <CLI/CLI.hpp>

#include <chrono>
#include <cstdio>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "runtime/base/version.h"
#include "tools/ctl/admin_commands.h"
#include "tools/ctl/client.h"
#include "tools/ctl/completion.h"
#include "tools/ctl/duration.h"
#include "tools/ctl/endpoint.h"
#include "tools/ctl/exit_code.h"
#include "tools/ctl/job_commands.h"
#include "tools/ctl/number_check.h"
#include "tools/ctl/submit.h"
#include "tools/ctl/usage_error.h"

namespace latentd::ctl {
namespace {

using std::chrono::milliseconds;

// Of what a person waits for: longer than any job.
constexpr milliseconds kDurationMax = std::chrono::hours(24 * 365);
constexpr milliseconds kAnswerMin{100};  // shorter, and a busy machine looks like a dead daemon
constexpr milliseconds kAnswerMax = std::chrono::hours(1);
constexpr milliseconds kDrainMax = std::chrono::hours(24 * 30);  // the API's

constexpr const char* kExamples =
    "Examples:\n"
    "  latentctl submit --prompt \"a red circle moving left\" -o circle.mp4\n"
    "  latentctl submit --prompt-file story.txt --size 832x480 --frames 81 --seed 7 -o story.gif\n"
    "  latentctl submit --prompt \"waves\" --format y4m -o - | ffplay -\n"
    "  id=$(latentctl submit --prompt \"waves\" --detach); latentctl watch $id; latentctl download $id -o waves.mp4\n"
    "  latentctl --json list --state running | jq -r '.jobs[].id'\n"
    "  source <(latentctl completion bash)\n"
    "\n"
    "Progress and errors go to standard error, results to standard output. --json prints the messages of\n"
    "proto/api.proto as JSON with their field names, and codes of errors by name: one object, or one a line for\n"
    "watch, cancel and delete.\n"
    "Environment: LATENTD_ENDPOINT is the default of --endpoint.\n\n";

struct DurationRange {
  milliseconds least{1};
  milliseconds most = kDurationMax;
};

// The command line and what it parses into. Owner: runCommandLine(). Thread: one.
class CommandLine {
 public:
  explicit CommandLine(const std::string& endpoint) {
    global_.endpoint = endpoint;
    app_.require_subcommand(1);
    app_.fallthrough();
    app_.set_version_flag("--version", "latentctl " + std::string(kVersion) + " (" + std::string(kApiVersion) + ")");
    app_.add_option("--endpoint", global_.endpoint, "The daemon")->type_name("HOST:PORT")->capture_default_str();
    app_.add_flag("--json", global_.json, "Print JSON for programs");
    addDuration(&app_, "--timeout", "How long to wait for an answer of the daemon", {kAnswerMin, kAnswerMax},
                [this](milliseconds value) { global_.timeout = value; })
        ->default_str("10s");
    addSubmit();
    addJobCommands();
    addAdminCommands();
    addCompletion();
    // Last: commands inherit what is set before they are added.
    app_.footer(std::string(kExamples) + kExitCodeHelp);
    for (CLI::App* command : app_.get_subcommands(nullptr))
      command->footer(globalHelp() + command->get_footer());
  }

  int run(int argc, char** argv) {
    try {
      app_.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
      if (error.get_exit_code() == 0) return app_.exit(error);  // --help or --version, which this prints
      return refuse(describeUsageError(app_, error));
    }
    const Status endpoint = app_.got_subcommand("completion") ? absl::OkStatus() : checkEndpoint(global_.endpoint);
    if (!endpoint.ok()) return refuse(messageOf(endpoint));
    return static_cast<int>(run_());
  }

 private:
  int refuse(const std::string& message) const {
    // An error ends the parsing before flags have reached global_.
    printError(app_.count("--json") > 0, "INVALID_ARGUMENT", message);
    return static_cast<int>(ExitCode::kUsage);
  }

  // `footer`: its examples, and what else there is to say of it alone.
  CLI::App* command(const std::string& name, const std::string& description, const std::string& footer,
                    std::function<ExitCode()> run) {
    CLI::App* added = app_.add_subcommand(name, description);
    added->footer(footer);
    added->callback([this, run = std::move(run)] { run_ = run; });
    return added;
  }

  std::string globalHelp() const {
    const std::vector<const CLI::Option*> options = app_.get_options([](const CLI::Option* option) {
      return option->get_name() == "--endpoint" || option->get_name() == "--json" || option->get_name() == "--timeout";
    });
    return CLI::Formatter().make_group("Options of every command", false, options) +
           "  `latentctl --help` lists the exit codes\n\n";
  }

  static CLI::Option* addDuration(CLI::App* command, const std::string& name, const std::string& description,
                                  DurationRange range, std::function<void(milliseconds)> take) {
    const auto parse = [name, range, take = std::move(take)](const std::string& text) {
      const StatusOr<milliseconds> value = parseDuration(text, range.least, range.most);
      if (!value.ok()) throw CLI::ValidationError(name, messageOf(value.status()));
      take(*value);
    };
    return command->add_option_function<std::string>(name, parse, description + ", such as 90s, 10m, 1h or 1d")
        ->type_name("DURATION");
  }
  static void addDuration(CLI::App* command, const std::string& name, std::optional<milliseconds>& value,
                          const std::string& description, DurationRange range = {}) {
    addDuration(command, name, description, range, [&value](milliseconds parsed) { value = parsed; });
  }

  template <class T>
  static void addCount(CLI::App* command, const std::string& name, std::optional<T>& value, T least,
                       const std::string& description) {
    command->add_option(name, value, description)->check(wholeNumber<T>(least))->type_name("N");
  }

  static void addReal(CLI::App* command, const std::string& name, std::optional<double>& value,
                      const std::string& description) {
    command->add_option(name, value, description)->check(realNumber())->type_name("X");
  }

  void addSubmit();
  void addJobCommands();
  void addAdminCommands();
  void addCompletion();

  CLI::App app_{"Command line client of latentd, the daemon that turns prompts into videos.", "latentctl"};
  GlobalOptions global_;
  SubmitOptions submit_;
  ListOptions list_;
  DownloadOptions download_;
  std::string id_;
  std::vector<std::string> ids_;
  DrainOptions drain_;
  DumpOptions dump_;
  std::string shell_;
  std::function<ExitCode()> run_;
};

void CommandLine::addSubmit() {
  CLI::App* submit = command(
      "submit", "Queue a video, follow it and write it to a file",
      "Ctrl-C cancels the job and ends with 130; a second one ends without waiting for the cancelled job. A\n"
      "file appears whole or not at all. npy is frames x height x width x 3; rgb is the bare bytes of the same.\n"
      "Where --format and the end of FILE name different formats, nothing is submitted.\n\n"
      "Examples:\n"
      "  latentctl submit --prompt \"a red circle moving left\" -o circle.mp4\n"
      "  latentctl submit --prompt-file story.txt --size 832x480 --frames 81 --seed 7 -o story.gif\n"
      "  latentctl submit --prompt \"waves\" --format y4m -o - | ffplay -\n"
      "  id=$(latentctl submit --prompt \"waves\" --deadline 10m --detach)\n",
      [this] { return runSubmit(global_, submit_); });
  CLI::Option* prompt =
      submit->add_option("--prompt", submit_.prompt, "What to show; - reads standard input")->type_name("TEXT");
  submit->add_option("--prompt-file", submit_.prompt_file, "Instead of --prompt: a file with it")
      ->type_name("FILE")
      ->excludes(prompt);
  submit->add_option("--negative-prompt", submit_.negative_prompt, "What to avoid")->type_name("TEXT");
  addCount(submit, "--frames", submit_.frames, 1u, "Frames of the video");
  submit->add_option("--size", submit_.size, "Pixels, such as 832x480")->type_name("WxH");
  addCount(submit, "--steps", submit_.steps, 1u, "Denoise steps");
  addReal(submit, "--guidance", submit_.guidance, "Guidance scale; 1 or less switches guidance off");
  addCount(submit, "--seed", submit_.seed, uint64_t{0}, "Seed of the noise; absent: a random one, which is told");
  addReal(submit, "--fps", submit_.fps, "Frames a second of the written video");
  addReal(submit, "--flow-shift", submit_.flow_shift, "Shift of the noise schedule");
  submit->add_flag("--retry", submit_.retry, "Run the job once more, at its old place, if a worker dies under it");
  submit->add_option("--priority", submit_.priority, "-100 to 100; higher first")
      ->check(CLI::Range(-100, 100).description(""))
      ->type_name("N");
  addDuration(submit, "--deadline", submit_.deadline, "Fail the job if it takes longer");
  addDuration(submit, "--stall-timeout", submit_.stall_timeout, "Fail the job if a stage makes no progress");
  submit->add_option("-o,--output", submit_.output, "File to write, - for standard output; default ID.FORMAT")
      ->type_name("FILE");
  submit->add_option("--format", submit_.format, "mp4, gif, y4m, png (contact sheet), npy or rgb; default by -o")
      ->type_name("NAME");
  submit->add_flag("--float", submit_.float_pixels, "npy only: float32 in [0, 1] instead of uint8");
  submit->add_flag("--detach", submit_.detach, "Print the job's id and return; without -o");
  submit->add_flag("-q,--quiet", submit_.quiet, "No progress; only the file and its seed at the end");
}

void CommandLine::addJobCommands() {
  CLI::App* list = command("list", "List jobs, newest first",
                           "Examples:\n"
                           "  latentctl list --state running,queued --since 1h\n"
                           "  latentctl --json list --limit 0 | jq -r '.jobs[].id'\n",
                           [this] { return runList(global_, list_); });
  list->add_option("--state", list_.states, std::string("Only jobs in these states: ") + kStateNames)
      ->delimiter(',')
      ->type_name("STATE");
  addDuration(list, "--since", list_.since, "Only jobs submitted within this time");
  list->add_option("--limit", list_.limit, "At most so many; 0 for all")
      ->check(wholeNumber<uint32_t>(0))
      ->type_name("N")
      ->capture_default_str();
  list->add_option("--page-token", list_.page_token, "Go on after a list that ended with this next_page_token (--json)")
      ->type_name("TOKEN");
  list->add_flag("-q,--quiet", list_.ids_only, "Only the ids");

  const auto takesJob = [this](CLI::App* added) {
    added->add_option("id", id_, "The job's id")->required()->type_name("ID");
  };
  const auto takesJobs = [this](CLI::App* added) {
    added->add_option("ids", ids_, "The jobs' ids")->required()->type_name("ID");
  };
  takesJob(command("get", "Show a job in full", "Example:\n  latentctl get 3f0c2a91b7de\n",
                   [this] { return runGet(global_, id_); }));
  takesJob(command("watch", "Follow a job; ends with the job's outcome",
                   "Ctrl-C ends the watching, not the job.\n\nExample:\n  latentctl watch 3f0c2a91b7de\n",
                   [this] { return runWatch(global_, id_); }));
  takesJobs(command("cancel", "Cancel jobs; returns at once",
                    "Example:\n  latentctl cancel $(latentctl list --quiet --state queued)\n",
                    [this] { return runCancel(global_, ids_); }));
  CLI::App* download = command("download", "Fetch a finished job's video",
                               "The format is the one that the job was submitted with; a FILE that names another is\n"
                               "refused.\n\nExample:\n  latentctl download 3f0c2a91b7de -o waves.mp4\n",
                               [this] {
                                 download_.id = id_;
                                 return runDownload(global_, download_);
                               });
  takesJob(download);
  download->add_option("-o,--output", download_.output, "File to write, - for standard output; default ID.FORMAT")
      ->type_name("FILE");
  CLI::App* trace =
      command("trace", "Write where the time of a job went, for Perfetto or Chrome",
              "Shows each rank's command, stage, steps and hand-offs beside the daemon's queue and commands.\n"
              "A job that runs shows what its ranks have answered so far.\n\n"
              "Example:\n  latentctl trace 3f0c2a91b7de -o t.json    # open it with ui.perfetto.dev\n",
              [this] {
                download_.id = id_;
                return runTrace(global_, download_);
              });
  takesJob(trace);
  trace->add_option("-o,--output", download_.output, "File to write, - for standard output; default ID.trace.json")
      ->type_name("FILE");
  takesJobs(command("delete", "Forget finished jobs and their videos",
                    "Example:\n  latentctl delete $(latentctl list --quiet --state failed,cancelled)\n",
                    [this] { return runDelete(global_, ids_); }));
}

void CommandLine::addAdminCommands() {
  command("topology", "Show groups, workers, edges and limits", "Example:\n  latentctl topology\n",
          [this] { return runTopology(global_); });
  command("edges", "Show the edges and what passed over them", "Example:\n  latentctl edges\n",
          [this] { return runEdges(global_); });
  CLI::App* dump = command(
      "dump", "Show what the ranks of a group do with each other, also while they hang",
      "The last operations that each rank has begun between the ranks of its group, as it notes them in memory\n"
      "that the daemon reads itself; after a failure those of the ranks that are gone, until their group is\n"
      "back. --json shows all that is kept.\n\n"
      "Examples:\n"
      "  latentctl dump denoise\n"
      "  latentctl --json dump | jq -r '.groups[].verdict'\n",
      [this] { return runDump(global_, dump_); });
  dump->add_option("group", dump_.group, "Only this group")->type_name("GROUP");
  dump->add_option("--last", dump_.last, "Operations of each rank")
      ->check(wholeNumber<uint32_t>(1))
      ->type_name("N")
      ->capture_default_str();
  CLI::App* drain = command(
      "drain", "Take no new jobs, finish the others, then end the daemon",
      "With --wait it ends with 0 if every job that was left came to its own end, with 4 if some were cancelled,\n"
      "by the deadline or on request; without it, with 0 once the daemon has begun.\n\n"
      "Example:\n  latentctl drain --deadline 10m --wait\n",
      [this] { return runDrain(global_, drain_); });
  addDuration(drain, "--deadline", drain_.deadline, "Cancel what is left after this time",
              {milliseconds(0), kDrainMax});
  CLI::Option* wait =
      drain->add_flag("--wait", drain_.wait, "Return when the daemon has ended; says what it waits for");
  addDuration(drain, "--wait-timeout", "With --wait: end with 9 if it takes longer", {}, [this](milliseconds value) {
    drain_.wait_timeout = value;
  })->needs(wait);
  command("version", "Show the versions of client and daemon", "Example:\n  latentctl version\n",
          [this] { return runVersion(global_); });
}

void CommandLine::addCompletion() {
  CLI::App* completion = command("completion", "Print a completion script for a shell",
                                 "Example:\n  source <(latentctl completion bash)\n", [this] {
                                   std::fputs(completionScript(app_, shell_).value_or("").c_str(), stdout);
                                   return ExitCode::kOk;
                                 });
  completion->add_option("shell", shell_, "bash, zsh or fish")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
}

}  // namespace

int runCommandLine(int argc, char** argv, const std::string& endpoint) { return CommandLine(endpoint).run(argc, argv); }

}  // namespace latentd::ctl
