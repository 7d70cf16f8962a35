#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/config/topology.h"
#include "runtime/config/value.h"

namespace latentd::config {

// An edge whose groups are still names.
struct EdgeDraft {
  EdgeSpec spec;
  MethodRef from;
  MethodRef to;
};

// A topology while it is read: what has been assigned, with references not yet resolved.
struct Draft {
  Topology topology;  // without edges, order and sink
  std::string model_dir;
  std::vector<EdgeDraft> edges;
};

// Where a key's value goes. group and edge are set inside the lists of those names only.
struct Target {
  Draft& draft;
  GroupSpec* group = nullptr;
  EdgeDraft* edge = nullptr;
};

// One key of the file. This table is what parses, what fills in defaults and what documents.
struct Key {
  std::string path;  // "queue.length_max"; "groups[].name" is a key of each entry of the list `groups`
  Rule rule;
  std::string default_text;  // parsed like a value when the key is absent; empty: see `absent`
  std::string absent;        // without a default: what absence means; empty too: the key is required
  std::string meaning;
  std::function<void(const Target&, const Value&)> assign;  // null for kSection and kList

  bool required() const { return default_text.empty() && absent.empty(); }
};

// Owner: whoever loads or prints; building it costs microseconds. Thread: immutable.
struct KeyTable {
  std::vector<Key> keys;  // in the order in which they are documented; a section stands before its keys

  KeyTable();
  // The key of that path, or null.
  const Key* find(std::string_view path) const;
  // The keys directly inside `section` ("" is the file, "groups[]" an entry of that list).
  std::vector<const Key*> children(std::string_view section) const;
};

// Every key with type, unit, range, default and meaning: a YAML file with comments, in which every key that has a
// default stands with it.
std::string printSchema(const KeyTable& table);

}  // namespace latentd::config
