#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "channel/channel.h"

// Trees and tensors for the channel's tests.
namespace latentd::channel::testing {

using Shape = std::vector<int64_t>;

// A dense tensor that owns its elements, numbered from `first`.
template <class Element>
TensorView makeTensor(const Shape& shape, DType dtype, Element first = Element{}) {
  auto elements = std::make_shared<std::vector<Element>>(static_cast<size_t>(elementCount(shape)));
  for (size_t i = 0; i < elements->size(); ++i)
    (*elements)[i] = static_cast<Element>(first + static_cast<Element>(i));
  TensorView view{dtype, shape, contiguousStrides(shape), elements->data(), Device{}};
  view.owner = elements;
  return view;
}

inline TensorView floats(const Shape& shape, float first = 0) {
  return makeTensor<float>(shape, DType::kFloat32, first);
}
inline TensorView bytes(const Shape& shape, uint8_t first = 0) {
  return makeTensor<uint8_t>(shape, DType::kUInt8, first);
}
inline TensorView longs(const Shape& shape, int64_t first = 0) {
  return makeTensor<int64_t>(shape, DType::kInt64, first);
}

// The elements of a tensor in row-major order, whatever its strides.
template <class Element>
std::vector<Element> elementsOf(const TensorView& view) {
  std::vector<Element> elements;
  const int64_t count = elementCount(view.shape);
  for (int64_t i = 0; i < count; ++i) {
    int64_t rest = i;
    int64_t offset = 0;
    for (size_t d = view.shape.size(); d-- > 0;) {
      offset += rest % view.shape[d] * view.strides[d];
      rest /= view.shape[d];
    }
    elements.push_back(static_cast<const Element*>(view.data)[offset]);
  }
  return elements;
}

// Part of a tensor along one dimension, sharing its storage.
inline TensorView slice(const TensorView& view, size_t dim, int64_t begin, int64_t end) {
  TensorView part = view;
  part.shape[dim] = end - begin;
  part.data =
      static_cast<std::byte*>(view.data) + begin * view.strides[dim] * static_cast<int64_t>(byteSize(view.dtype));
  return part;
}

inline ArtifactTree leaf(TensorView view) { return ArtifactTree::Value(std::move(view)); }

inline ArtifactTree dict(std::vector<std::pair<std::string, ArtifactTree>> entries) {
  return ArtifactTree::Value(ArtifactTree::Dict{std::move(entries)});
}

inline const TensorView& tensorAt(const ArtifactTree& tree, std::string_view key) {
  return *tree.find(key)->getIf<TensorView>();
}

}  // namespace latentd::channel::testing
