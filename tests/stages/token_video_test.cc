#include "stages/token_video.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>

#include <vector>

#include "tests/support/catch.h"

namespace latentd::stages {
namespace {

// Every value is its own number.
at::Tensor numbered(at::IntArrayRef shape) {
  int64_t count = 1;
  for (const int64_t extent : shape)
    count *= extent;
  return at::arange(count, at::kFloat).reshape(shape);
}

TokenVideo rowsOf(const TokenVideo& whole, int64_t begin, int64_t end) {
  const VideoExtents& grid = whole.grid;
  const at::Tensor by_row =
      whole.tokens.reshape({whole.tokens.size(0), grid.frames, grid.rows, grid.columns, whole.tokens.size(2), -1});
  TokenVideo part = whole;
  part.tokens =
      by_row.slice(2, begin, end).reshape({whole.tokens.size(0), -1, whole.tokens.size(2), whole.tokens.size(3)});
  part.cut = TokenCut::kRows;
  part.begin = begin;
  return part;
}

TEST_CASE("token video: a token is its patch, frame by frame and row by row", "[stages]") {
  const at::Tensor video = numbered({2, 3, 4, 6, 8});
  const TokenVideo tokens = patchify(video, {2, 3, 2});
  CHECK(tokens.grid == VideoExtents{2, 2, 4});
  REQUIRE(tokens.tokens.sizes() == at::IntArrayRef({2, 16, 3, 12}));
  for (const auto& [frame, row, column] : {std::array<int64_t, 3>{0, 0, 0}, {1, 0, 3}, {1, 1, 2}}) {
    CAPTURE(frame, row, column);
    const at::Tensor patch =
        video.slice(2, 2 * frame, 2 * frame + 2).slice(3, 3 * row, 3 * row + 3).slice(4, 2 * column, 2 * column + 2);
    CHECK(at::equal(tokens.tokens.select(1, (frame * 2 + row) * 4 + column), patch.reshape({2, 3, 12})));
  }
  CHECK(at::equal(unpatchify(tokens), video));
}

TEST_CASE("token video: rows that are held are those rows of the video", "[stages]") {
  const at::Tensor video = numbered({1, 4, 3, 10, 6});
  const TokenVideo whole = patchify(video, {1, 2, 2});
  const TokenVideo upper = rowsOf(whole, 0, 3);
  const TokenVideo lower = rowsOf(whole, 3, 5);
  CHECK(at::equal(unpatchify(upper), video.slice(3, 0, 6)));
  CHECK(at::equal(at::cat({unpatchify(upper), unpatchify(lower)}, 3), video));
  CHECK(unpatchify(rowsOf(whole, 2, 2)).sizes() == at::IntArrayRef({1, 4, 3, 0, 6}));
  TokenVideo run = whole;
  run.cut = TokenCut::kTokens;
  CHECK_THROWS_AS(unpatchify(run), c10::Error);
}

TEST_CASE("token video: an entry of a dictionary and back, and what is none", "[stages]") {
  const TokenVideo whole = patchify(numbered({1, 4, 3, 10, 6}), {1, 2, 2});
  TokenVideo part = whole;
  part.tokens = whole.tokens.slice(1, 7, 20);
  part.cut = TokenCut::kTokens;
  part.begin = 7;
  const auto back = tokenVideoOf(toTree(part), "latents");
  REQUIRE(back.status().ToString() == "OK");
  CHECK(at::equal(back->tokens, part.tokens));
  CHECK(back->grid == part.grid);
  CHECK(back->patch == part.patch);
  CHECK(back->cut == part.cut);
  CHECK(back->begin == 7);
  CHECK(isTokenVideo(toTree(part)));
  CHECK_FALSE(isTokenVideo(TensorTree::Value(whole.tokens)));

  const auto refused = [](const TokenVideo& video) {
    const Status status = tokenVideoOf(toTree(video), "latents").status();
    CAPTURE(status.ToString());
    CHECK(status.code() == absl::StatusCode::kInvalidArgument);
    CHECK(messageOf(status).find("\"latents\"") != std::string::npos);
  };
  const auto changed = [&](auto change) {
    TokenVideo video = part;
    change(video);
    return video;
  };
  refused(changed([](TokenVideo& video) { video.cut = TokenCut::kNone; }));           // not all of it
  refused(changed([](TokenVideo& video) { video.cut = TokenCut::kRows; }));           // no whole rows
  refused(changed([](TokenVideo& video) { video.cut = static_cast<TokenCut>(3); }));  // none
  refused(changed([](TokenVideo& video) { video.begin = 33; }));                      // 46 of 45 tokens
  refused(changed([](TokenVideo& video) { video.begin = -1; }));
  refused(changed([](TokenVideo& video) { video.grid.rows = 0; }));
  refused(changed([](TokenVideo& video) { video.patch.rows = 3; }));                    // 6 values, not 4
  refused(changed([](TokenVideo& video) { video.tokens = video.tokens.flatten(2); }));  // three dimensions
  refused(changed([](TokenVideo& video) { video.tokens = at::Tensor(); }));
  CHECK_FALSE(tokenVideoOf(TensorTree::Value(whole.tokens), "latents").ok());
}

}  // namespace
}  // namespace latentd::stages
