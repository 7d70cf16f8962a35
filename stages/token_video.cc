#include "stages/token_video.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <optional>
#include <utility>

namespace latentd::stages {
namespace {

constexpr const char* kTokens = "tokens";
constexpr const char* kPatch = "patch";
constexpr const char* kGrid = "token_grid";
constexpr const char* kCut = "token_cut";
constexpr const char* kBegin = "token_begin";

TensorTree integerTree(int64_t value) { return TensorTree(TensorTree::Value(value)); }

TensorTree extentsTree(const VideoExtents& extents) {
  return TensorTree(
      TensorTree::Tuple{{integerTree(extents.frames), integerTree(extents.rows), integerTree(extents.columns)}});
}

std::optional<VideoExtents> extentsOf(const TensorTree* entry) {
  const auto* tuple = entry == nullptr ? nullptr : entry->getIf<TensorTree::Tuple>();
  if (tuple == nullptr || tuple->items.size() != 3) return std::nullopt;
  std::array<int64_t, 3> extents{};
  for (size_t i = 0; i < extents.size(); ++i) {
    const int64_t* extent = tuple->items[i].getIf<int64_t>();
    if (extent == nullptr || *extent < 1) return std::nullopt;
    extents[i] = *extent;
  }
  return VideoExtents{extents[0], extents[1], extents[2]};
}

const int64_t* integerOf(const TensorTree* entry) { return entry == nullptr ? nullptr : entry->getIf<int64_t>(); }

bool isPartOfItsGrid(const TokenVideo& video) {
  const int64_t held = video.tokens.size(1);
  const int64_t unit = video.unit();
  const int64_t extent = video.grid.count() / unit;
  if (held % unit != 0 || video.begin < 0 || video.begin + held / unit > extent) return false;
  return video.cut != TokenCut::kNone || held == extent;
}

}  // namespace

TensorTree toTree(const TokenVideo& video) {
  TensorTree::Dict entry;
  entry.entries.emplace_back(kTokens, TensorTree::Value(video.tokens));
  entry.entries.emplace_back(kPatch, extentsTree(video.patch));
  return withPart(TensorTree(std::move(entry)), video.grid, video.cut, video.begin);
}

TensorTree withoutPart(const TensorTree& entry) {
  TensorTree::Dict same;
  for (const char* key : {kTokens, kPatch}) {
    if (const TensorTree* value = entry.find(key)) same.entries.emplace_back(key, *value);
  }
  return TensorTree(std::move(same));
}

TensorTree withPart(TensorTree entry, const VideoExtents& grid, TokenCut cut, int64_t begin) {
  if (auto* dict = entry.getIf<TensorTree::Dict>()) {
    dict->entries.emplace_back(kGrid, extentsTree(grid));
    dict->entries.emplace_back(kCut, integerTree(static_cast<int64_t>(cut)));
    dict->entries.emplace_back(kBegin, integerTree(begin));
  }
  return entry;
}

bool isTokenVideo(const TensorTree& entry) { return entry.find(kGrid) != nullptr; }

StatusOr<TokenVideo> tokenVideoOf(const TensorTree& entry, std::string_view key) {
  const TensorTree* tokens = entry.find(kTokens);
  const at::Tensor* tensor = tokens == nullptr ? nullptr : tokens->getIf<at::Tensor>();
  const std::optional<VideoExtents> grid = extentsOf(entry.find(kGrid));
  const std::optional<VideoExtents> patch = extentsOf(entry.find(kPatch));
  const int64_t* cut = integerOf(entry.find(kCut));
  const int64_t* begin = integerOf(entry.find(kBegin));
  const bool complete = tensor != nullptr && tensor->defined() && grid && patch && cut != nullptr && begin != nullptr;
  if (!complete || *cut < 0 || *cut > static_cast<int64_t>(TokenCut::kRows)) {
    return absl::InvalidArgumentError(fmt::format("\"{}\" is no video in token layout", key));
  }
  if (tensor->dim() != 4 || tensor->size(3) != patch->count()) {
    return absl::InvalidArgumentError(fmt::format("\"{}\" is [{}]; expected [batch, tokens, channels, {}]", key,
                                                  fmt::join(tensor->sizes(), ", "), patch->count()));
  }
  TokenVideo video{*tensor, *grid, *patch, static_cast<TokenCut>(*cut), *begin};
  if (isPartOfItsGrid(video)) return video;
  return absl::InvalidArgumentError(
      fmt::format("\"{}\" has {} tokens from {} on, cut along {}: no part of a grid of {} x {} x {}", key,
                  tensor->size(1), *begin, latentd::toString(video.cut), grid->frames, grid->rows, grid->columns));
}

TokenVideo patchify(const at::Tensor& video, const VideoExtents& patch) {
  const VideoExtents grid{video.size(2) / patch.frames, video.size(3) / patch.rows, video.size(4) / patch.columns};
  // B, C, F, pf, R, pr, W, pc -> B, F, R, W, C, pf, pr, pc
  at::Tensor tokens = video
                          .reshape({video.size(0), video.size(1), grid.frames, patch.frames, grid.rows, patch.rows,
                                    grid.columns, patch.columns})
                          .permute({0, 2, 4, 6, 1, 3, 5, 7})
                          .reshape({video.size(0), grid.count(), video.size(1), patch.count()});
  return {std::move(tokens), grid, patch};
}

at::Tensor unpatchify(const TokenVideo& video) {
  TORCH_CHECK(video.cut != TokenCut::kTokens, "a run of tokens is no video: it may begin and end within a row");
  const VideoExtents& patch = video.patch;
  const int64_t frames = video.grid.frames;
  const int64_t columns = video.grid.columns;
  const int64_t rows = video.tokens.size(1) / (frames * columns);
  const int64_t batch = video.tokens.size(0);
  const int64_t channels = video.tokens.size(2);
  // B, F, R, W, C, pf, pr, pc -> B, C, F, pf, R, pr, W, pc
  return video.tokens.reshape({batch, frames, rows, columns, channels, patch.frames, patch.rows, patch.columns})
      .permute({0, 4, 1, 5, 2, 6, 3, 7})
      .reshape({batch, channels, frames * patch.frames, rows * patch.rows, columns * patch.columns});
}

}  // namespace latentd::stages
