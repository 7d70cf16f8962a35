#include "channel/tree_codec.h"

#include <algorithm>
#include <bit>
#include <string>
#include <utility>

#include "channel/limits.h"

namespace latentd::channel {
namespace {

Status tooLarge(std::string_view what, uint64_t most) {
  return makeStatus(absl::StatusCode::kInvalidArgument,
                    "an artifact has more than " + std::to_string(most) + " " + std::string(what));
}

class Encoder {
 public:
  explicit Encoder(const std::vector<TensorView>& leaves) : leaves_(leaves) {}

  Status encode(const ArtifactTree& tree, v1::TreeNode& node, uint32_t depth) {
    if (depth > kTreeDepthMax) return tooLarge("levels", kTreeDepthMax);
    if (++nodes_ > kTreeNodesMax) return tooLarge("nodes", kTreeNodesMax);
    if (const bool* flag = tree.getIf<bool>()) {
      node.set_boolean(*flag);
    } else if (const int64_t* integer = tree.getIf<int64_t>()) {
      node.set_integer(*integer);
    } else if (const double* real = tree.getIf<double>()) {
      node.set_real(*real);
    } else if (const std::string* text = tree.getIf<std::string>()) {
      node.set_text(*text);
    } else if (const TensorView* leaf = tree.getIf<TensorView>()) {
      const auto same = [leaf](const TensorView& other) { return sameStorage(*leaf, other); };
      node.set_leaf(static_cast<uint32_t>(std::find_if(leaves_.begin(), leaves_.end(), same) - leaves_.begin()));
    } else if (const auto* dict = tree.getIf<ArtifactTree::Dict>()) {
      node.mutable_dict();
      for (const auto& [key, entry] : dict->entries) {
        node.mutable_dict()->add_keys(key);
        LATENTD_RETURN_IF_ERROR(encode(entry, *node.mutable_dict()->add_items(), depth + 1));
      }
    } else if (const auto* list = tree.getIf<ArtifactTree::List>()) {
      return encodeItems(list->items, *node.mutable_list(), depth);
    } else if (const auto* tuple = tree.getIf<ArtifactTree::Tuple>()) {
      return encodeItems(tuple->items, *node.mutable_tuple(), depth);
    } else {
      node.set_null(true);
    }
    return absl::OkStatus();
  }

 private:
  Status encodeItems(const std::vector<ArtifactTree>& items, v1::TreeItems& message, uint32_t depth) {
    for (const ArtifactTree& item : items)
      LATENTD_RETURN_IF_ERROR(encode(item, *message.add_items(), depth + 1));
    return absl::OkStatus();
  }

  const std::vector<TensorView>& leaves_;
  uint32_t nodes_ = 0;
};

class Validator {
 public:
  explicit Validator(size_t leaf_count) : leaf_count_(leaf_count) {}

  Status validate(const v1::TreeNode& node, uint32_t depth) {
    if (depth > kTreeDepthMax) return tooLarge("levels", kTreeDepthMax);
    if (++nodes_ > kTreeNodesMax) return tooLarge("nodes", kTreeNodesMax);
    switch (node.kind_case()) {
      case v1::TreeNode::kLeaf:
        if (node.leaf() < leaf_count_) return absl::OkStatus();
        return makeStatus(absl::StatusCode::kInvalidArgument,
                          "a tree names leaf " + std::to_string(node.leaf()) + " of " + std::to_string(leaf_count_));
      case v1::TreeNode::kDict:
        if (node.dict().keys_size() != node.dict().items_size()) {
          return makeStatus(absl::StatusCode::kInvalidArgument, "a dictionary has not one key for each item");
        }
        return validateItems(node.dict(), depth);
      case v1::TreeNode::kList:
        return validateItems(node.list(), depth);
      case v1::TreeNode::kTuple:
        return validateItems(node.tuple(), depth);
      case v1::TreeNode::KIND_NOT_SET:
        return makeStatus(absl::StatusCode::kInvalidArgument, "a tree has a node of no kind");
      default:
        return absl::OkStatus();
    }
  }

 private:
  Status validateItems(const v1::TreeItems& message, uint32_t depth) {
    for (const v1::TreeNode& item : message.items())
      LATENTD_RETURN_IF_ERROR(validate(item, depth + 1));
    return absl::OkStatus();
  }

  const size_t leaf_count_;
  uint32_t nodes_ = 0;
};

// Walks a tree beside a message, and makes nothing: on the path of every hand-off.
class Comparer {
 public:
  explicit Comparer(const std::vector<TensorView>& leaves) : leaves_(leaves) {}

  bool same(const ArtifactTree& tree, const v1::TreeNode& node) const {
    switch (node.kind_case()) {
      case v1::TreeNode::kBoolean:
        return equal(tree.getIf<bool>(), node.boolean());
      case v1::TreeNode::kInteger:
        return equal(tree.getIf<int64_t>(), node.integer());
      case v1::TreeNode::kReal: {
        // By their bits: a zero has a sign, and no NaN equals itself.
        const double* const real = tree.getIf<double>();
        return real != nullptr && std::bit_cast<uint64_t>(*real) == std::bit_cast<uint64_t>(node.real());
      }
      case v1::TreeNode::kText:
        return equal(tree.getIf<std::string>(), node.text());
      case v1::TreeNode::kLeaf: {
        const TensorView* const leaf = tree.getIf<TensorView>();
        return leaf != nullptr && node.leaf() < leaves_.size() && sameStorage(*leaf, leaves_[node.leaf()]);
      }
      case v1::TreeNode::kDict:
        return sameDict(tree.getIf<ArtifactTree::Dict>(), node.dict());
      case v1::TreeNode::kList: {
        const auto* const list = tree.getIf<ArtifactTree::List>();
        return list != nullptr && sameItems(list->items, node.list());
      }
      case v1::TreeNode::kTuple: {
        const auto* const tuple = tree.getIf<ArtifactTree::Tuple>();
        return tuple != nullptr && sameItems(tuple->items, node.tuple());
      }
      default:
        return tree.getIf<ArtifactTree::Null>() != nullptr;
    }
  }

 private:
  template <class T>
  static bool equal(const T* value, const T& other) {
    return value != nullptr && *value == other;
  }

  bool sameItems(const std::vector<ArtifactTree>& items, const v1::TreeItems& message) const {
    if (static_cast<int>(items.size()) != message.items_size()) return false;
    return std::equal(items.begin(), items.end(), message.items().begin(),
                      [this](const ArtifactTree& item, const v1::TreeNode& node) { return same(item, node); });
  }

  bool sameDict(const ArtifactTree::Dict* dict, const v1::TreeItems& message) const {
    if (dict == nullptr || static_cast<int>(dict->entries.size()) != message.items_size()) return false;
    for (int i = 0; i < message.items_size(); ++i) {
      const auto& [key, entry] = dict->entries[static_cast<size_t>(i)];
      if (key != message.keys(i) || !same(entry, message.items(i))) return false;
    }
    return true;
  }

  const std::vector<TensorView>& leaves_;
};

std::vector<ArtifactTree> decodeItems(const v1::TreeItems& message, const std::vector<TensorView>& leaves);

ArtifactTree decode(const v1::TreeNode& node, const std::vector<TensorView>& leaves) {
  using Value = ArtifactTree::Value;
  switch (node.kind_case()) {
    case v1::TreeNode::kBoolean:
      return Value(node.boolean());
    case v1::TreeNode::kInteger:
      return Value(int64_t{node.integer()});
    case v1::TreeNode::kReal:
      return Value(node.real());
    case v1::TreeNode::kText:
      return Value(std::string(node.text()));
    case v1::TreeNode::kLeaf:
      return Value(leaves[node.leaf()]);
    case v1::TreeNode::kDict: {
      ArtifactTree::Dict dict;
      std::vector<ArtifactTree> items = decodeItems(node.dict(), leaves);
      for (size_t i = 0; i < items.size(); ++i) {
        dict.entries.emplace_back(node.dict().keys(static_cast<int>(i)), std::move(items[i]));
      }
      return Value(std::move(dict));
    }
    case v1::TreeNode::kList:
      return Value(ArtifactTree::List{decodeItems(node.list(), leaves)});
    case v1::TreeNode::kTuple:
      return Value(ArtifactTree::Tuple{decodeItems(node.tuple(), leaves)});
    default:
      return ArtifactTree();
  }
}

std::vector<ArtifactTree> decodeItems(const v1::TreeItems& message, const std::vector<TensorView>& leaves) {
  std::vector<ArtifactTree> items;
  for (const v1::TreeNode& item : message.items())
    items.push_back(decode(item, leaves));
  return items;
}

}  // namespace

std::vector<TensorView> distinctLeaves(const ArtifactTree& tree) {
  std::vector<TensorView> leaves;
  tree.forEachLeaf([&](const TensorView& leaf) {
    const auto same = [&leaf](const TensorView& other) { return sameStorage(leaf, other); };
    if (std::none_of(leaves.begin(), leaves.end(), same)) leaves.push_back(leaf);
  });
  return leaves;
}

Status encodeTree(const ArtifactTree& tree, const std::vector<TensorView>& leaves, v1::TreeNode& root) {
  if (leaves.size() > kLeavesMax) return tooLarge("tensors", kLeavesMax);
  return Encoder(leaves).encode(tree, root, 1);
}

bool isEncodedAs(const ArtifactTree& tree, const std::vector<TensorView>& leaves, const v1::TreeNode& root) {
  return Comparer(leaves).same(tree, root);
}

Status validateTree(const v1::TreeNode& root, size_t leaf_count) { return Validator(leaf_count).validate(root, 1); }

StatusOr<ArtifactTree> decodeTree(const v1::TreeNode& root, const std::vector<TensorView>& leaves) {
  LATENTD_RETURN_IF_ERROR(validateTree(root, leaves.size()));
  return decode(root, leaves);
}

}  // namespace latentd::channel
