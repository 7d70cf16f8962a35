#include "tools/ctl/usage_error.h"

#include <algorithm>
#include <vector>

#include "runtime/config/spelling.h"

namespace latentd::ctl {
namespace {

bool isOption(const std::string& word) { return word.size() > 1 && word.front() == '-'; }

void addOptionNames(const CLI::App& app, std::vector<std::string>& names) {
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames())
      names.push_back("--" + name);
  }
}

std::string unknown(const std::string& kind, const std::string& word, const std::vector<std::string>& known) {
  const std::vector<std::string> meant = config::nearest(word, known);
  return "unknown " + kind + " '" + word + "'" +
         (meant.empty() ? "" : "; did you mean " + config::quotedList(meant) + "?");
}

// Of the words that nothing takes: the first option, which may have brought the others as its value, else the first.
std::string describeUnknown(const CLI::App& app, const CLI::App* command, const std::vector<std::string>& words) {
  const auto option = std::find_if(words.begin(), words.end(), isOption);
  std::vector<std::string> known;
  if (option != words.end()) {
    addOptionNames(app, known);
    if (command != nullptr) addOptionNames(*command, known);
    return unknown("option", option->substr(0, option->find('=')), known);
  }
  if (command != nullptr) return "unexpected argument '" + words.front() + "'";
  for (const CLI::App* each : app.get_subcommands([](const CLI::App*) { return true; }))
    known.push_back(each->get_name());
  return unknown("command", words.front(), known);
}

}  // namespace

std::string describeUsageError(const CLI::App& app, const CLI::ParseError& error) {
  const std::vector<CLI::App*> commands = app.get_subcommands();
  const CLI::App* command = commands.empty() ? nullptr : commands.front();
  // A word that nothing takes is also why something required is missing.
  const int code = error.get_exit_code();
  const bool incomplete =
      code == static_cast<int>(CLI::ExitCodes::RequiredError) || code == static_cast<int>(CLI::ExitCodes::ExtrasError);
  const std::vector<std::string> words = app.remaining(true);
  std::string text = error.what();
  if (incomplete && !words.empty()) {
    text = describeUnknown(app, command, words);
  } else if (incomplete && command == nullptr) {
    text = "a command is missing";
  }
  const std::string program = command == nullptr ? "latentctl" : "latentctl " + command->get_name();
  return text + (text.ends_with('?') ? " " : "; ") + "`" + program + " --help` shows what it takes";
}

}  // namespace latentd::ctl
