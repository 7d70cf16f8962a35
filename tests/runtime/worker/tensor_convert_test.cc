#include "runtime/worker/tensor_convert.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>

#include <cstring>
#include <memory>
#include <vector>

#include "mesh/scalar_type.h"
#include "stages/token_video.h"
#include "tests/support/catch.h"

namespace latentd::worker {
namespace {

using channel::TensorView;
using stages::TensorTree;

TEST_CASE("tensor conversion: no copy in either direction, strides included", "[worker]") {
  const at::Tensor tensor = at::arange(24, at::kFloat).reshape({2, 3, 4}).permute({2, 0, 1}).slice(0, 1, 3);
  const TensorView view = toView(tensor).value();
  CHECK(view.data == tensor.data_ptr());
  CHECK(view.shape == std::vector<int64_t>{2, 2, 3});
  CHECK(view.strides == tensor.strides().vec());
  const at::Tensor back = toTensor(view).value();
  CHECK(back.data_ptr() == tensor.data_ptr());
  CHECK(at::equal(back, tensor));
}

TEST_CASE("tensor conversion: a view that is all of a tensor becomes that tensor again", "[worker]") {
  const at::Tensor tensor = at::arange(24, at::kFloat).reshape({4, 6});
  const TensorView view = toView(tensor).value();
  CHECK(toTensor(view)->is_same(tensor));
  TensorView part = view;
  part.shape = {2, 6};
  CHECK(at::equal(*toTensor(part), tensor.slice(0, 0, 2)));
  part = view;
  part.shape = {6, 4};
  part.strides = {1, 6};
  CHECK(at::equal(*toTensor(part), tensor.t()));
  part = toView(tensor.slice(0, 1, 3)).value();
  part.data = tensor.data_ptr();
  CHECK(at::equal(*toTensor(part), tensor.slice(0, 0, 2)));
}

TEST_CASE("tensor conversion: every dtype of the wire survives", "[worker]") {
  for (uint8_t number = 1; number <= 8; ++number) {
    const auto dtype = static_cast<DType>(number);
    const at::Tensor tensor = at::empty({3}, at::TensorOptions().dtype(toScalarType(dtype)));
    const TensorView view = toView(tensor).value();
    CHECK(view.dtype == dtype);
    CHECK(toTensor(view)->scalar_type() == tensor.scalar_type());
  }
}

TEST_CASE("tensor conversion: each side keeps the storage alive", "[worker]") {
  SECTION("a view outlives its tensor") {
    at::Tensor tensor = at::arange(1000, at::kLong);
    const TensorView view = toView(tensor).value();
    tensor = at::Tensor();
    int64_t last = 0;
    std::memcpy(&last, static_cast<const char*>(view.data) + 999 * sizeof(int64_t), sizeof(last));
    CHECK(last == 999);
  }
  SECTION("a tensor and its slices outlive the view") {
    auto storage = std::make_shared<std::vector<float>>(12, 4.0F);
    const std::weak_ptr<std::vector<float>> watched = storage;
    TensorView view{.dtype = DType::kFloat32,
                    .shape = {3, 4},
                    .strides = {4, 1},
                    .data = storage->data(),
                    .owner = std::move(storage)};
    at::Tensor slice = toTensor(view).value().select(0, 1);
    view = TensorView();
    CHECK_FALSE(watched.expired());
    CHECK(slice.sum().item().toDouble() == 16.0);
    slice = at::Tensor();
    CHECK(watched.expired());
  }
}

TEST_CASE("tensor conversion: scalars and empty tensors", "[worker]") {
  const at::Tensor scalar = at::arange(5, at::kFloat)[3];
  CHECK(toTensor(toView(scalar).value())->item().toDouble() == 3.0);
  const at::Tensor empty = at::empty({0, 7}, at::TensorOptions().dtype(at::kByte));
  const at::Tensor back = toTensor(toView(empty).value()).value();
  CHECK(back.sizes() == empty.sizes());
  TensorView without_data = toView(empty).value();
  without_data.data = nullptr;
  CHECK(toTensor(without_data)->sizes() == empty.sizes());
}

TEST_CASE("tensor conversion: what no edge carries is refused", "[worker]") {
  const auto code = [](const at::Tensor& tensor) { return toView(tensor).status().code(); };
  CHECK(code(at::Tensor()) == absl::StatusCode::kInvalidArgument);
  CHECK(code(at::empty({2}, at::TensorOptions().dtype(at::kComplexFloat))) == absl::StatusCode::kInvalidArgument);
  CHECK(code(at::empty({2}, at::TensorOptions().device(at::kMeta))) == absl::StatusCode::kInvalidArgument);
  CHECK(code(at::empty({2, 2}, at::TensorOptions().layout(at::kSparse))) == absl::StatusCode::kInvalidArgument);
  TensorTree::List list{{TensorTree(at::arange(2)), TensorTree(at::Tensor())}};
  CHECK(toArtifact(TensorTree(std::move(list))).status().code() == absl::StatusCode::kInvalidArgument);
  CHECK(toTensor(TensorView()).status().code() == absl::StatusCode::kInvalidArgument);
}

TEST_CASE("tensor conversion: a video in token layout is a leaf with its part, and an entry where it arrives",
          "[worker]") {
  stages::TokenVideo video =
      stages::patchify(at::arange(1 * 2 * 3 * 8 * 4, at::kFloat).reshape({1, 2, 3, 8, 4}), {1, 2, 2});
  video.tokens = video.tokens.slice(1, 5, 16);
  video.cut = TokenCut::kTokens;
  video.begin = 5;
  TensorTree::Dict outputs;
  outputs.entries.emplace_back("latents", toTree(video));
  outputs.entries.emplace_back("other", TensorTree::Value(at::arange(3)));
  const channel::ArtifactTree artifact = toArtifact(TensorTree(std::move(outputs))).value();
  const auto* leaf = artifact.find("latents")->find("tokens")->getIf<TensorView>();
  REQUIRE(leaf != nullptr);
  CHECK(leaf->tokens == channel::TokenPart{1, {3, 4, 2}, TokenCut::kTokens, {5, 16}});
  CHECK_FALSE(artifact.find("other")->getIf<TensorView>()->tokens.has_value());
  // Nothing that differs from rank to rank is in the tree: the ranks of a group publish equal ones.
  CHECK(artifact.find("latents")->getIf<channel::ArtifactTree::Dict>()->entries.size() == 2);

  // The consumer's part is another one.
  TensorView rows = toView(at::arange(1 * 12 * 2 * 4, at::kFloat).reshape({1, 12, 2, 4})).value();
  rows.tokens = channel::TokenPart{1, {3, 4, 2}, TokenCut::kRows, {2, 4}};
  channel::ArtifactTree arrived = artifact;
  auto& entries = arrived.getIf<channel::ArtifactTree::Dict>()->entries[0].second;
  entries.getIf<channel::ArtifactTree::Dict>()->entries[0].second = channel::ArtifactTree::Value(rows);
  const TensorTree tree = fromArtifact(arrived).value();
  const auto back = stages::tokenVideoOf(*tree.find("latents"), "latents");
  REQUIRE(back.status().ToString() == "OK");
  CHECK(back->tokens.data_ptr() == rows.data);
  CHECK(back->grid == video.grid);
  CHECK(back->patch == video.patch);
  CHECK(back->cut == TokenCut::kRows);
  CHECK(back->begin == 2);
  CHECK(stages::unpatchify(*back).sizes() == at::IntArrayRef({1, 2, 3, 4, 4}));
  CHECK_FALSE(stages::isTokenVideo(*tree.find("other")));

  video.begin = 20;  // 11 tokens from 20 on, of 24
  CHECK(toArtifact(TensorTree(TensorTree::Dict{{{"latents", toTree(video)}}})).status().code() ==
        absl::StatusCode::kInvalidArgument);
}

TEST_CASE("tensor conversion: device names", "[worker]") {
  CHECK((parseDevice("cpu").value() == channel::Device{}));
  CHECK((parseDevice("cuda:3").value() == channel::Device{channel::DeviceType::kCuda, 3}));
  for (const char* bad : {"", "cuda", "cuda:", "cuda:x", "cuda:1x", "gpu:0", "CPU"})
    CHECK_FALSE(parseDevice(bad).ok());
}

}  // namespace
}  // namespace latentd::worker
