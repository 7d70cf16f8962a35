#include "tools/ctl/completion.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>
#include <vector>

namespace latentd::ctl {
namespace {

// What a flag or a command's argument is completed with.
enum class Values { kNone, kFile, kFormat, kState, kJob, kShell };

struct Completion {
  Values values = Values::kNone;
  // Of kJob: the states of the jobs that the command takes; empty: all.
  std::string_view states;
};

constexpr std::string_view kFormats = "mp4 gif y4m png npy rgb";
constexpr std::string_view kStates = "queued running cancelling succeeded failed cancelled";
constexpr std::string_view kShells = "bash zsh fish";

std::string listJobs(std::string_view states) {
  return "latentctl --timeout 1s list --quiet --limit 0" + (states.empty() ? "" : " --state " + std::string(states)) +
         " 2>/dev/null";
}

Completion valuesOfFlag(const std::string& name) {
  static constexpr std::array<std::pair<std::string_view, Values>, 4> kKnown{{{"--output", Values::kFile},
                                                                              {"--prompt-file", Values::kFile},
                                                                              {"--format", Values::kFormat},
                                                                              {"--state", Values::kState}}};
  for (const auto& [known, values] : kKnown) {
    if (known == name) return {values, {}};
  }
  return {};
}

Completion valuesOfCommand(const std::string& name) {
  static constexpr std::array<std::pair<std::string_view, std::string_view>, 6> kTakeJobs{
      {{"get", ""},
       {"watch", ""},
       {"cancel", "queued,running"},
       {"download", "succeeded"},
       {"trace", ""},
       {"delete", "succeeded,failed,cancelled"}}};
  for (const auto& [command, states] : kTakeJobs) {
    if (command == name) return {Values::kJob, states};
  }
  return {name == "completion" ? Values::kShell : Values::kNone, {}};
}

struct Flag {
  std::vector<std::string> names;  // "-o", "--output"
  std::string long_name;           // "--output"
  std::string help;
  bool takes_value = false;
};

std::vector<Flag> flagsOf(const CLI::App& app) {
  std::vector<Flag> flags;
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_lnames().empty()) continue;
    Flag flag;
    for (const std::string& name : option->get_snames())
      flag.names.push_back("-" + name);
    for (const std::string& name : option->get_lnames())
      flag.names.push_back("--" + name);
    flag.long_name = "--" + option->get_lnames().front();
    flag.help = option->get_description();
    flag.takes_value = option->get_items_expected_max() > 0;
    flags.push_back(std::move(flag));
  }
  return flags;
}

std::vector<const CLI::App*> commandsOf(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App*) { return true; });
}

// Of the program, those that a command takes too; it has a --help of its own.
std::vector<Flag> sharedFlagsOf(const CLI::App& app) {
  std::vector<Flag> flags = flagsOf(app);
  std::erase_if(flags, [](const Flag& flag) { return flag.long_name == "--help" || flag.long_name == "--version"; });
  return flags;
}

std::string flagNames(const std::vector<Flag>& flags) {
  std::string names;
  for (const Flag& flag : flags) {
    for (const std::string& name : flag.names)
      names += (names.empty() ? "" : " ") + name;
  }
  return names;
}

// Inside single quotes of a shell, and without what ends a zsh description.
std::string quoted(std::string text) {
  for (char& c : text) {
    if (c == '\'' || c == '[' || c == ']' || c == ':' || c == '\n') c = ' ';
  }
  return text;
}

std::string bashReply(const Completion& completion) {
  switch (completion.values) {
    case Values::kFile:
      return "COMPREPLY=($(compgen -f -- \"$cur\"))";
    case Values::kFormat:
      return "COMPREPLY=($(compgen -W \"" + std::string(kFormats) + "\" -- \"$cur\"))";
    case Values::kState:
      // What the list already has stays in front.
      return "local list=; [[ $cur == *,* ]] && list=${cur%,*},; COMPREPLY=($(compgen -P \"$list\" -W \"" +
             std::string(kStates) + "\" -- \"${cur##*,}\"))";
    case Values::kShell:
      return "COMPREPLY=($(compgen -W \"" + std::string(kShells) + "\" -- \"$cur\"))";
    case Values::kJob:
      return "COMPREPLY=($(compgen -W \"$(" + listJobs(completion.states) + ")\" -- \"$cur\"))";
    case Values::kNone:
      return "COMPREPLY=()";
  }
  return "";
}

// Every flag of every command that takes a value, with what completes it.
std::string bashValueCases(const CLI::App& app) {
  std::string cases;
  std::vector<std::string> seen;
  std::vector<const CLI::App*> apps = commandsOf(app);
  apps.insert(apps.begin(), &app);
  for (const CLI::App* each : apps) {
    for (const Flag& flag : flagsOf(*each)) {
      if (!flag.takes_value || std::find(seen.begin(), seen.end(), flag.long_name) != seen.end()) continue;
      seen.push_back(flag.long_name);
      std::string pattern;
      for (const std::string& name : flag.names)
        pattern += (pattern.empty() ? "" : "|") + name;
      cases += "    " + pattern + ") " + bashReply(valuesOfFlag(flag.long_name)) + "; return ;;\n";
    }
  }
  return cases;
}

std::string bashScript(const CLI::App& app) {
  std::string commands, command_cases, detection;
  for (const CLI::App* command : commandsOf(app)) {
    const std::string& name = command->get_name();
    commands += (commands.empty() ? "" : " ") + name;
    detection += (detection.empty() ? "" : "|") + name;
    command_cases += "    " + name + ")\n      if [[ $cur == -* ]]; then\n        COMPREPLY=($(compgen -W \"" +
                     flagNames(flagsOf(*command)) + " " + flagNames(sharedFlagsOf(app)) +
                     "\" -- \"$cur\"))\n      else\n        " + bashReply(valuesOfCommand(name)) + "\n      fi ;;\n";
  }
  return "# bash completion of latentctl; load with: source <(latentctl completion bash)\n"
         "_latentctl() {\n"
         "  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} command= word\n"
         "  for word in \"${COMP_WORDS[@]:1:COMP_CWORD-1}\"; do\n"
         "    case $word in " +
         detection +
         ") command=$word; break ;; esac\n"
         "  done\n"
         "  case $prev in\n" +
         bashValueCases(app) +
         "  esac\n"
         "  case $command in\n" +
         command_cases + "    *) COMPREPLY=($(compgen -W \"" + commands + " " + flagNames(flagsOf(app)) +
         "\" -- \"$cur\")) ;;\n"
         "  esac\n"
         "}\n"
         "complete -F _latentctl latentctl\n";
}

std::string zshAction(const Completion& completion) {
  switch (completion.values) {
    case Values::kFile:
      return "_files";
    case Values::kFormat:
      return "(" + std::string(kFormats) + ")";
    case Values::kState:
      return "_values -s , state " + std::string(kStates);
    case Values::kShell:
      return "(" + std::string(kShells) + ")";
    case Values::kJob:
      return "($(" + listJobs(completion.states) + "))";
    case Values::kNone:
      return " ";
  }
  return "";
}

std::string zshFlags(const std::vector<Flag>& flags, const std::string& indent) {
  std::string lines;
  for (const Flag& flag : flags) {
    for (const std::string& name : flag.names) {
      lines += indent + "'" + name + "[" + quoted(flag.help) + "]" +
               (flag.takes_value ? ":value:" + zshAction(valuesOfFlag(flag.long_name)) : "") + "' \\\n";
    }
  }
  return lines;
}

std::string zshScript(const CLI::App& app) {
  std::string described, cases;
  for (const CLI::App* command : commandsOf(app)) {
    const std::string& name = command->get_name();
    described += "    '" + name + ":" + quoted(command->get_description()) + "'\n";
    cases += "        " + name + ")\n          _arguments \\\n" + zshFlags(flagsOf(*command), "            ") +
             zshFlags(sharedFlagsOf(app), "            ") + "            '*:value:" + zshAction(valuesOfCommand(name)) +
             "' ;;\n";
  }
  return "#compdef latentctl\n"
         "# zsh completion of latentctl; load with: source <(latentctl completion zsh)\n"
         "_latentctl() {\n"
         "  local state\n"
         "  local -a commands\n"
         "  commands=(\n" +
         described +
         "  )\n"
         "  _arguments -C \\\n" +
         zshFlags(flagsOf(app), "    ") +
         "    '1: :->command' \\\n"
         "    '*:: :->arguments'\n"
         "  case $state in\n"
         "    command) _describe command commands ;;\n"
         "    arguments)\n"
         "      case $words[1] in\n" +
         cases +
         "      esac ;;\n"
         "  esac\n"
         "}\n"
         "compdef _latentctl latentctl\n";
}

std::string fishValues(const Completion& completion) {
  switch (completion.values) {
    case Values::kFile:
      return " -F";
    case Values::kFormat:
      return " -x -a '" + std::string(kFormats) + "'";
    case Values::kState:
      return " -x -a '(__fish_append , " + std::string(kStates) + ")'";
    case Values::kShell:
      return " -x -a '" + std::string(kShells) + "'";
    case Values::kJob:
      return " -x -a '(" + listJobs(completion.states) + ")'";
    case Values::kNone:
      return " -x";
  }
  return "";
}

std::string fishFlags(const std::vector<Flag>& flags, const std::string& condition) {
  std::string lines;
  for (const Flag& flag : flags) {
    lines += "complete -c latentctl -n '" + condition + "'";
    for (const std::string& name : flag.names) {
      lines += name.substr(0, 2) == "--" ? " -l " + name.substr(2) : " -s " + name.substr(1);
    }
    lines += (flag.takes_value ? fishValues(valuesOfFlag(flag.long_name)) : "") + " -d '" + quoted(flag.help) + "'\n";
  }
  return lines;
}

std::string fishScript(const CLI::App& app) {
  std::string script =
      "# fish completion of latentctl; load with: latentctl completion fish | source\n"
      "complete -c latentctl -f\n" +
      fishFlags(flagsOf(app), "__fish_use_subcommand") + fishFlags(sharedFlagsOf(app), "not __fish_use_subcommand");
  for (const CLI::App* command : commandsOf(app)) {
    const std::string& name = command->get_name();
    const std::string inside = "__fish_seen_subcommand_from " + name;
    script += "complete -c latentctl -n __fish_use_subcommand -a " + name + " -d '" +
              quoted(command->get_description()) + "'\n" + fishFlags(flagsOf(*command), inside);
    const Completion values = valuesOfCommand(name);
    if (values.values != Values::kNone)
      script += "complete -c latentctl -n '" + inside + "'" + fishValues(values) + "\n";
  }
  return script;
}

}  // namespace

std::optional<std::string> completionScript(const CLI::App& app, const std::string& shell) {
  if (shell == "bash") return bashScript(app);
  if (shell == "zsh") return zshScript(app);
  if (shell == "fish") return fishScript(app);
  return std::nullopt;
}

}  // namespace latentd::ctl
