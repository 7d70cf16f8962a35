#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "channel/token_grid.h"
#include "runtime/base/dtype.h"
#include "runtime/base/tree.h"

namespace latentd::channel {

enum class DeviceType : uint8_t { kCpu = 0, kCuda = 1 };

struct Device {
  DeviceType type = DeviceType::kCpu;
  uint32_t index = 0;
  friend bool operator==(const Device&, const Device&) = default;
};

// A tensor as the data plane sees it: where the elements are, never what they mean. A value type; copies share the
// storage, which lives as long as `owner` does (owners: every copy of the view, and whoever made it).
struct TensorView {
  DType dtype = DType::kInvalid;
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;  // in elements, one for each dimension
  void* data = nullptr;          // element [0, 0, ...]; may be null where an extent is 0
  Device device;
  std::shared_ptr<void> owner;
  // A leaf that neither side cuts: every consumer rank gets all of it, from producer rank 0. Only meaningful on edges
  // that are cut.
  bool whole = false;
  // A video in token layout: what of its grid this is. Cut by ChannelSpec::producer_tokens and consumer_tokens; no
  // shard_dim applies.
  std::optional<TokenPart> tokens;
};

// What one publication carries: dictionaries, lists, tuples and scalars over tensors.
using ArtifactTree = Tree<TensorView>;

// Strides of a dense row-major tensor.
std::vector<int64_t> contiguousStrides(const std::vector<int64_t>& shape);
bool isContiguous(const TensorView& view);
// The same storage: two leaves for which this holds are sent once.
bool sameStorage(const TensorView& a, const TensorView& b);
// Elements of a shape whose extents are known not to be negative and whose product is known to fit.
int64_t elementCount(const std::vector<int64_t>& shape);
uint64_t byteCount(const TensorView& view);

}  // namespace latentd::channel
