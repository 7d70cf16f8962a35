#pragma once

#include <string>
#include <utility>
#include <vector>

#include "runtime/base/status.h"

namespace latentd::config {

// One node of a parsed file. A value type.
struct Node {
  enum class Kind { kNull, kScalar, kSequence, kMapping };
  struct Entry;

  Kind kind = Kind::kNull;
  int line = 0;  // 1-based
  std::string scalar;
  std::vector<Entry> entries;  // kMapping, in the order of the file; keys are unique
  std::vector<Node> items;     // kSequence
};

struct Node::Entry {
  std::string key;
  int line = 0;  // of the key, 1-based
  Node value;
};

// As the file would have it on one line: "null", "text", "[a, b]", "{a: 1}".
std::string flowText(const Node& node);

// Larger files are refused unread: a topology of a thousand groups has a tenth of this.
inline constexpr size_t kFileBytesMax = size_t{1} << 20;

// Reads and parses one file of one document. Anchors, aliases, tags, keys that are not plain and repeated keys are
// refused: nothing in a topology needs them, and an alias can make a small file large. INVALID_ARGUMENT and errno's
// codes; messages begin with "FILE:LINE: ", or "FILE: " where no line is known.
StatusOr<Node> readYamlFile(const std::string& file);

// The same for text already in memory; `file` is for messages.
StatusOr<Node> parseYaml(const std::string& text, const std::string& file);

}  // namespace latentd::config
