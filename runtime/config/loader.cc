#include "runtime/config/loader.h"

#include <algorithm>
#include <filesystem>

#include "runtime/config/consistency.h"
#include "runtime/config/locations.h"
#include "runtime/config/schema.h"
#include "runtime/config/spelling.h"
#include "runtime/config/yaml_document.h"

namespace latentd::config {
namespace {

std::string absolutePath(const std::string& path, const std::string& base) {
  std::string normal = (std::filesystem::path(base) / path).lexically_normal().string();
  if (normal.size() > 1 && normal.back() == '/') normal.pop_back();
  return normal;
}

std::string_view leafOf(std::string_view path) {
  const size_t dot = path.rfind('.');
  return dot == std::string_view::npos ? path : path.substr(dot + 1);
}

// What stands in the file, for a message.
std::string gotText(const Node& node) {
  switch (node.kind) {
    case Node::Kind::kNull:
      return "null";
    case Node::Kind::kScalar:
      return shown(node.scalar);
    case Node::Kind::kSequence:
      return "the list " + shown(flowText(node));
    case Node::Kind::kMapping:
      return "the mapping " + shown(flowText(node));
  }
  return "?";
}

// Assigns a tree of nodes to a draft, by the key table.
class Reader {
 public:
  Reader(const KeyTable& table, Locations& locations, std::string base_dir)
      : table_(table), locations_(locations), base_dir_(std::move(base_dir)) {}

  // node may be null: the section is absent and its defaults apply. `section` is the pattern ("groups[]"), `path` the
  // same with indexes ("groups[1]").
  Status readSection(const Node* node, const std::string& section, const std::string& path, const Target& target) {
    const std::vector<const Key*> children = table_.children(section);
    if (node != nullptr) LATENTD_RETURN_IF_ERROR(checkEntries(*node, section, path, children));
    for (const Key* key : children) {
      const Node* value = nullptr;
      if (node != nullptr) {
        const auto entry = std::find_if(node->entries.begin(), node->entries.end(),
                                        [&](const Node::Entry& e) { return e.key == leafOf(key->path); });
        if (entry != node->entries.end()) value = &entry->value;
      }
      LATENTD_RETURN_IF_ERROR(readKey(*key, value, joined(path, leafOf(key->path)), target));
    }
    return {};
  }

 private:
  Status checkEntries(const Node& node, const std::string& section, const std::string& path,
                      const std::vector<const Key*>& children) {
    if (node.kind != Node::Kind::kMapping)
      return locations_.refuse(path, messageOf(wrongShape({Type::kSection, {}, {}}, gotText(node))));
    for (const Node::Entry& entry : node.entries) {
      const std::string child = joined(path, entry.key);
      locations_.record(child, entry.line);
      const Key* const key = table_.find(joined(section, entry.key));
      if (key == nullptr) return unknownKey(entry, path, children);
      if (entry.value.kind == Node::Kind::kNull) {
        return locations_.refuse(
            child, "has no value (null); give " + describe(key->rule) + (key->required() ? "" : ", or remove the key"));
      }
    }
    return {};
  }

  Status unknownKey(const Node::Entry& entry, const std::string& path, const std::vector<const Key*>& children) const {
    std::vector<std::string> valid;
    for (const Key* key : children)
      valid.emplace_back(leafOf(key->path));
    const std::vector<std::string> similar = nearest(entry.key, valid);
    std::string message = "unknown key";
    if (entry.value.kind == Node::Kind::kScalar) message += " (value '" + entry.value.scalar.substr(0, 80) + "')";
    message += similar.empty() ? "; valid here: " : "; did you mean " + quotedList(similar) + "? Valid here: ";
    for (size_t i = 0; i < valid.size(); ++i)
      message += (i == 0 ? "" : ", ") + valid[i];
    return locations_.refuse(joined(path, entry.key.substr(0, 80)), message);
  }

  Status readKey(const Key& key, const Node* node, const std::string& path, const Target& target) {
    if (key.rule.type == Type::kSection) return readSection(node, key.path, path, target);
    if (node == nullptr) {
      if (key.required()) return locations_.refuse(path, "missing; give " + describe(key.rule));
      if (key.default_text.empty()) return {};
      const StatusOr<Value> value = parseScalar(key.rule, key.default_text);
      if (value.ok()) key.assign(target, *value);
      return value.status();
    }
    if (key.rule.type == Type::kList) return readList(key, *node, path, target.draft);
    if (key.rule.type == Type::kOptions) {
      for (const Node::Entry& entry : node->entries)
        locations_.record(joined(path, entry.key), entry.line);
    }
    StatusOr<Value> value = readValue(key.rule, *node);
    if (!value.ok()) return locations_.refuse(path, messageOf(value.status()));
    if (key.rule.type == Type::kPath) *value = absolutePath(std::get<std::string>(*value), base_dir_);
    key.assign(target, *value);
    return {};
  }

  Status readList(const Key& key, const Node& node, const std::string& path, Draft& draft) {
    if (const Status shape = checkShape(key.rule, node, Node::Kind::kSequence); !shape.ok())
      return locations_.refuse(path, messageOf(shape));
    for (size_t i = 0; i < node.items.size(); ++i) {
      const std::string item = indexed(path, i);
      locations_.record(item, node.items[i].line);
      Target target{draft, nullptr, nullptr};
      if (key.path == "groups") target.group = &draft.topology.groups.emplace_back();
      if (key.path == "edges") target.edge = &draft.edges.emplace_back();
      LATENTD_RETURN_IF_ERROR(readSection(&node.items[i], key.path + "[]", item, target));
    }
    return {};
  }

  static Status wrongShape(const Rule& rule, const std::string& got) {
    return makeStatus(absl::StatusCode::kInvalidArgument, "got " + got + ", expected " + describe(rule));
  }

  // A list or a mapping, and as many entries as the rule allows.
  static Status checkShape(const Rule& rule, const Node& node, Node::Kind kind) {
    if (node.kind != kind) return wrongShape(rule, gotText(node));
    const size_t entries = node.items.size() + node.entries.size();
    const auto count = static_cast<double>(entries);
    if (count >= rule.range.min && count <= rule.range.max) return {};
    return wrongShape(rule, std::to_string(entries) + " entries");
  }

  static StatusOr<Value> readValue(const Rule& rule, const Node& node) {
    if (rule.type == Type::kDevices) return readDevices(rule, node);
    if (rule.type == Type::kOptions) return readOptions(rule, node);
    if (node.kind != Node::Kind::kScalar) return wrongShape(rule, gotText(node));
    return parseScalar(rule, node.scalar);
  }

  static StatusOr<Value> readDevices(const Rule& rule, const Node& node) {
    LATENTD_RETURN_IF_ERROR(checkShape(rule, node, Node::Kind::kSequence));
    std::vector<Device> devices;
    for (const Node& item : node.items) {
      if (item.kind != Node::Kind::kScalar) return wrongShape(rule, gotText(node));
      const StatusOr<Value> device = parseScalar(rule, item.scalar);
      if (!device.ok()) return device.status();
      devices.push_back(std::get<std::vector<Device>>(*device).front());
    }
    return StatusOr<Value>(absl::in_place, std::move(devices));
  }

  static StatusOr<Value> readOptions(const Rule& rule, const Node& node) {
    LATENTD_RETURN_IF_ERROR(checkShape(rule, node, Node::Kind::kMapping));
    Options options;
    for (const Node::Entry& entry : node.entries) {
      if (entry.value.kind != Node::Kind::kScalar) {
        return makeStatus(absl::StatusCode::kInvalidArgument,
                          "option '" + entry.key.substr(0, 80) + "': got " + gotText(entry.value) +
                              ", expected text or a number (latent-worker --describe has what each option takes)");
      }
      options.emplace(entry.key, entry.value.scalar);
    }
    return StatusOr<Value>(absl::in_place, std::move(options));
  }

  const KeyTable& table_;
  Locations& locations_;
  const std::string base_dir_;
};

StatusOr<Topology> readTopology(const Node& root, const std::string& file, const Surroundings& surroundings) {
  std::error_code error;
  const std::filesystem::path absolute_file = std::filesystem::absolute(file, error);
  if (error) return errnoStatus(error.value(), file);
  Draft draft;
  draft.topology.file = file;
  draft.topology.runtime_dir = surroundings.runtime_dir;
  const KeyTable table;
  Locations locations(file);
  Reader reader(table, locations, absolute_file.parent_path().string());
  LATENTD_RETURN_IF_ERROR(reader.readSection(&root, "", "", Target{draft, nullptr, nullptr}));
  LATENTD_ASSIGN_OR_RETURN(Topology topology, complete(std::move(draft), locations, surroundings.cores));
  topology.locations = std::move(locations);
  return topology;
}

}  // namespace

StatusOr<Topology> loadTopology(const std::string& file, const Surroundings& surroundings) {
  LATENTD_ASSIGN_OR_RETURN(const Node root, readYamlFile(file));
  return readTopology(root, file, surroundings);
}

StatusOr<Topology> parseTopology(const std::string& yaml, const std::string& file, const Surroundings& surroundings) {
  LATENTD_ASSIGN_OR_RETURN(const Node root, parseYaml(yaml, file));
  return readTopology(root, file, surroundings);
}

}  // namespace latentd::config
