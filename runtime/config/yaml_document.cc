#include "runtime/config/yaml_document.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <sstream>
#include <unordered_map>

#include "runtime/base/unique_fd.h"

namespace latentd::config {
namespace {

// The deepest topology key is groups[].parallel.tp; yaml-cpp's own bound is far above.
constexpr size_t kDepthMax = 16;

Status refused(const std::string& file, int line, const std::string& message) {
  return makeStatus(absl::StatusCode::kInvalidArgument, file + ":" + std::to_string(line) + ": " + message);
}

// Builds nodes from the parser's events. The first problem is kept and later events are ignored.
class NodeBuilder final : public YAML::EventHandler {
 public:
  explicit NodeBuilder(const std::string& file) : file_(file) {}

  const Status& status() const { return status_; }
  Node takeRoot() { return std::move(root_); }

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override { add(mark, anchor, "", Node::Kind::kNull, ""); }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    fail(mark, "aliases (*name) are refused; write the value out");
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    add(mark, anchor, tag, Node::Kind::kScalar, value);
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    open(mark, anchor, tag, Node::Kind::kSequence);
  }
  void OnSequenceEnd() override { close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    open(mark, anchor, tag, Node::Kind::kMapping);
  }
  void OnMapEnd() override { close(); }

 private:
  struct Level {
    Node node;
    std::optional<std::pair<std::string, int>> key;  // of a mapping: waiting for its value
    std::unordered_map<std::string, int> key_lines;  // of a mapping: what it holds already
  };

  void fail(const YAML::Mark& mark, const std::string& message) {
    if (status_.ok()) status_ = refused(file_, mark.line + 1, message);
  }

  bool acceptable(const YAML::Mark& mark, YAML::anchor_t anchor, const std::string& tag) {
    if (anchor != 0) fail(mark, "anchors (&name) are refused; write the value out where it is needed");
    // "?" is a plain value, "!" a quoted one.
    if (!tag.empty() && tag != "?" && tag != "!") fail(mark, "tag " + tag + " is refused; write the plain value");
    return status_.ok();
  }

  void add(const YAML::Mark& mark, YAML::anchor_t anchor, const std::string& tag, Node::Kind kind,
           const std::string& scalar) {
    if (!acceptable(mark, anchor, tag)) return;
    Node node;
    node.kind = kind;
    node.line = mark.line + 1;
    node.scalar = scalar;
    attach(mark, std::move(node));
  }

  void open(const YAML::Mark& mark, YAML::anchor_t anchor, const std::string& tag, Node::Kind kind) {
    if (!acceptable(mark, anchor, tag)) return;
    if (levels_.size() == kDepthMax) return fail(mark, "nested deeper than " + std::to_string(kDepthMax) + " levels");
    const bool is_key = !levels_.empty() && levels_.back().node.kind == Node::Kind::kMapping && !levels_.back().key;
    if (is_key) return fail(mark, "a key must be plain text, not a list or a mapping");
    Level level;
    level.node.kind = kind;
    level.node.line = mark.line + 1;
    levels_.push_back(std::move(level));
  }

  void close() {
    if (!status_.ok()) return;
    Node node = std::move(levels_.back().node);
    levels_.pop_back();
    attach(YAML::Mark(), std::move(node));
  }

  void attach(const YAML::Mark& mark, Node node) {
    if (levels_.empty()) {
      root_ = std::move(node);
      return;
    }
    Level& level = levels_.back();
    if (level.node.kind == Node::Kind::kSequence) {
      level.node.items.push_back(std::move(node));
    } else if (level.key) {
      level.node.entries.push_back({std::move(level.key->first), level.key->second, std::move(node)});
      level.key.reset();
    } else {
      takeKey(mark, level, std::move(node));
    }
  }

  void takeKey(const YAML::Mark& mark, Level& level, Node node) {
    if (node.kind != Node::Kind::kScalar || node.scalar.empty()) return fail(mark, "a key is empty; give it a name");
    const auto [first, is_new] = level.key_lines.emplace(node.scalar, node.line);
    if (!is_new) {
      return fail(mark, "key '" + node.scalar + "' is given twice, first on line " + std::to_string(first->second) +
                            "; remove one");
    }
    level.key.emplace(std::move(node.scalar), node.line);
  }

  const std::string& file_;
  Status status_;
  Node root_;
  std::vector<Level> levels_;
};

}  // namespace

std::string flowText(const Node& node) {
  if (node.kind == Node::Kind::kNull) return "null";
  if (node.kind == Node::Kind::kScalar) return node.scalar;
  std::string inside;
  for (const Node& item : node.items)
    inside += (inside.empty() ? "" : ", ") + flowText(item);
  for (const Node::Entry& entry : node.entries)
    inside += (inside.empty() ? "" : ", ") + entry.key + ": " + flowText(entry.value);
  return node.kind == Node::Kind::kSequence ? "[" + inside + "]" : "{" + inside + "}";
}

StatusOr<Node> parseYaml(const std::string& text, const std::string& file) {
  const auto is_binary = [](unsigned char c) { return (c < 0x20 && c != '\n' && c != '\r' && c != '\t') || c == 0x7f; };
  const auto binary = std::find_if(text.begin(), text.end(), is_binary);
  if (binary != text.end()) {
    const int line = 1 + static_cast<int>(std::count(text.begin(), binary, '\n'));
    return refused(file, line, "contains a control character; a topology is plain UTF-8 text");
  }
  NodeBuilder builder(file);
  try {
    std::istringstream stream(text);
    YAML::Parser parser(stream);
    const bool has_document = parser.HandleNextDocument(builder);
    LATENTD_RETURN_IF_ERROR(builder.status());
    Node root = builder.takeRoot();
    if (!has_document || root.kind == Node::Kind::kNull) {
      return refused(file, 1, "the file is empty; see --print-schema for the keys");
    }
    NodeBuilder rest(file);
    if (parser.HandleNextDocument(rest)) return refused(file, root.line, "the file holds more than one document (---)");
    return root;
  } catch (const YAML::Exception& error) {
    return refused(file, error.mark.line + 1, "not valid YAML: " + error.msg);
  } catch (const std::exception& error) {
    return makeStatus(absl::StatusCode::kInvalidArgument, file + ": not valid YAML: " + error.what());
  }
}

StatusOr<Node> readYamlFile(const std::string& file) {
  UniqueFd fd(::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.valid()) return errnoStatus(errno, file);
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return errnoStatus(errno, file);
  if (!S_ISREG(info.st_mode)) {
    return makeStatus(absl::StatusCode::kInvalidArgument, file + ": not a regular file; give a topology in YAML");
  }
  if (static_cast<uint64_t>(info.st_size) > kFileBytesMax) {
    return makeStatus(
        absl::StatusCode::kInvalidArgument,
        file + ": " + std::to_string(info.st_size) + " bytes; a topology has at most " + std::to_string(kFileBytesMax));
  }
  std::string text(static_cast<size_t>(info.st_size), '\0');
  size_t filled = 0;
  while (filled < text.size()) {
    const ssize_t got = ::read(fd.get(), text.data() + filled, text.size() - filled);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return errnoStatus(errno, file);
    if (got == 0) break;
    filled += static_cast<size_t>(got);
  }
  text.resize(filled);
  return parseYaml(text, file);
}

}  // namespace latentd::config
