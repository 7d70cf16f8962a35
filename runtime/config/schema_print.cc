#include <algorithm>

#include "runtime/config/schema.h"

namespace latentd::config {
namespace {

std::string_view leafOf(std::string_view path) {
  const size_t dot = path.rfind('.');
  return dot == std::string_view::npos ? path : path.substr(dot + 1);
}

// One step in for each section or list around the key; an entry of a list is one step in itself.
size_t indentOf(std::string_view path) {
  return 2 * static_cast<size_t>(std::count(path.begin(), path.end(), '.') + std::count(path.begin(), path.end(), '['));
}

std::string whenAbsent(const Key& key) {
  if (key.required()) return "Required.";
  return "Default: " + (key.default_text.empty() ? key.absent : key.default_text) + ".";
}

bool isContainer(const Key& key) { return key.rule.type == Type::kSection || key.rule.type == Type::kList; }

// What has no default stands as a comment, and so does a section of nothing else: the text is a file to fill in.
bool standsAsComment(const KeyTable& table, const Key& key) {
  if (!isContainer(key)) return key.default_text.empty();
  const std::vector<const Key*> inside = table.children(key.path + (key.rule.type == Type::kList ? "[]" : ""));
  return std::all_of(inside.begin(), inside.end(), [](const Key* child) { return child->default_text.empty(); });
}

std::string valueOf(const Key& key) {
  if (key.rule.type == Type::kDevices) return " [" + key.default_text + "]";
  return key.default_text.empty() ? "" : " " + key.default_text;
}

}  // namespace

std::string printSchema(const KeyTable& table) {
  std::string text =
      "# Every key of a latentd topology file: what it means, type, unit and range, default, and how it is written.\n"
      "# Unknown keys are refused. Relative paths start at the file's folder.\n";
  for (const Key& key : table.keys) {
    const std::string indent(indentOf(key.path), ' ');
    text += "\n" + indent + "# " + key.meaning + "\n";
    text += indent + "# Value: " + describe(key.rule) + ".";
    text += key.rule.type == Type::kSection ? "\n" : " " + whenAbsent(key) + "\n";
    text +=
        indent + (standsAsComment(table, key) ? "# " : "") + std::string(leafOf(key.path)) + ":" + valueOf(key) + "\n";
    if (key.rule.type == Type::kList) text += indent + "  -\n";
  }
  return text;
}

}  // namespace latentd::config
