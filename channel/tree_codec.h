#pragma once

#include <functional>
#include <vector>

#include "channel/tensor_view.h"
#include "proto/channel.pb.h"
#include "runtime/base/status.h"

namespace latentd::channel {

// The distinct tensors of a tree, in order of first appearance.
std::vector<TensorView> distinctLeaves(const ArtifactTree& tree);

// The structure and scalars of a tree; a tensor becomes its index in distinctLeaves(tree). INVALID_ARGUMENT beyond
// channel/limits.h.
Status encodeTree(const ArtifactTree& tree, const std::vector<TensorView>& leaves, v1::TreeNode& root);

// Whether `root` is what encodeTree() would make of the tree.
bool isEncodedAs(const ArtifactTree& tree, const std::vector<TensorView>& leaves, const v1::TreeNode& root);

// The tree with leaf i replaced by leaves[i]. INVALID_ARGUMENT if the message names a leaf that is not there, exceeds
// channel/limits.h or has a node of no kind.
StatusOr<ArtifactTree> decodeTree(const v1::TreeNode& root, const std::vector<TensorView>& leaves);

// decodeTree()'s checks alone, with `leaf_count` leaves.
Status validateTree(const v1::TreeNode& root, size_t leaf_count);

}  // namespace latentd::channel
