#include "stages/vae/tiling.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "runtime/base/status_field.h"
#include "stages/vae/tiled_decoding.h"
#include "stages/vae/vae_decoder_stage.h"
#include "tests/stages/golden.h"
#include "tests/stages/vae/model_fixture.h"
#include "tests/stages/vae/stage_fixture.h"
#include "tests/support/contains_text.h"

namespace latentd::stages::vae {
namespace {

using testing::Golden;
using testing::maxAbsDifference;
using testing::Oracle;
using testing::oracles;
using testing::problem;

constexpr double kVideoTolerance = 5e-5;

AutoencoderKLWan load(const std::string& checkpoint) {
  return testing::loadVae(checkpoint, {.half = VaeHalf::kDecoder});
}

struct Geometry {
  int64_t height;
  int64_t width;
  int64_t tile_height;
  int64_t tile_width;
  int64_t overlap;
};

// Images that end in the middle of a tile, with it, and within an overlap.
const std::vector<Geometry> kGeometries = {{7, 9, 4, 5, 2}, {6, 6, 4, 4, 2}, {5, 4, 3, 2, 1}, {8, 3, 3, 3, 0},
                                           {1, 9, 2, 2, 1}, {4, 4, 4, 4, 2}, {9, 7, 4, 2, 1}, {13, 11, 6, 4, 2}};

at::Tensor cropped(const at::Tensor& image, const TileSpan& rows, const TileSpan& columns, int64_t scale) {
  return image.narrow(0, rows.begin * scale, rows.length * scale)
      .narrow(1, columns.begin * scale, columns.length * scale);
}

TEST_CASE("tiling: tiles cover an image, overlap with their neighbours, and the last ones end with it", "[vae]") {
  for (int64_t image = 1; image <= 20; ++image) {
    for (int64_t length = 1; length <= 8; ++length) {
      for (int64_t overlap = 0; 2 * overlap <= length; ++overlap) {
        INFO(image << " in " << length << " overlapping " << overlap);
        const std::vector<TileSpan> spans = cutIntoTiles(image, length, overlap);
        CHECK(spans.front().begin == 0);
        CHECK(spans.front().overlap_before == 0);
        CHECK(spans.back().begin + spans.back().length == image);
        CHECK(spans.back().overlap_after == 0);
        for (size_t i = 0; i < spans.size(); ++i) {
          CHECK(spans[i].begin == static_cast<int64_t>(i) * (length - overlap));
          CHECK(spans[i].length == std::min(length, image - spans[i].begin));
          if (i == 0) continue;
          // Every entry that both have, and no other.
          CHECK(spans[i].overlap_before == spans[i - 1].begin + spans[i - 1].length - spans[i].begin);
          CHECK(spans[i].overlap_before == spans[i - 1].overlap_after);
        }
      }
    }
  }
}

// The reference's procedure on tiles of any content: from the top left, each is blended into in place.
at::Tensor blendedInTurn(std::vector<std::vector<at::Tensor>> tiles, const Geometry& g, int64_t scale) {
  const auto blend = [](const at::Tensor& before, const at::Tensor& tile, int64_t dim, int64_t overlap) {
    const int64_t extent = std::min({before.size(dim), tile.size(dim), overlap});
    for (int64_t i = 0; i < extent; ++i) {
      const double share = static_cast<double>(i) / static_cast<double>(extent);
      const at::Tensor old = before.select(dim, before.size(dim) - extent + i);
      tile.select(dim, i).copy_(old.mul(1 - share).add(tile.select(dim, i).mul(share)));
    }
  };
  std::vector<at::Tensor> rows;
  for (size_t i = 0; i < tiles.size(); ++i) {
    std::vector<at::Tensor> row;
    for (size_t j = 0; j < tiles[i].size(); ++j) {
      const at::Tensor& tile = tiles[i][j];
      if (i > 0) blend(tiles[i - 1][j], tile, 0, g.overlap * scale);
      if (j > 0) blend(tiles[i][j - 1], tile, 1, g.overlap * scale);
      row.push_back(
          tile.slice(0, 0, (g.tile_height - g.overlap) * scale).slice(1, 0, (g.tile_width - g.overlap) * scale));
    }
    rows.push_back(at::cat(row, 1));
  }
  return at::cat(rows, 0);
}

TEST_CASE("tiling: the weighted sum of any tiles is what blending them in turn gives", "[vae]") {
  for (const Geometry& g : kGeometries) {
    for (const int64_t scale : {1, 4, 8}) {
      INFO(fmt::format("{}x{} in {}x{} overlapping {}, scale {}", g.height, g.width, g.tile_height, g.tile_width,
                       g.overlap, scale));
      at::Tensor sum = at::zeros({g.height * scale, g.width * scale, 3});
      at::Tensor weight = at::zeros({g.height * scale, g.width * scale, 1});
      std::vector<std::vector<at::Tensor>> tiles;
      for (const TileSpan& rows : cutIntoTiles(g.height, g.tile_height, g.overlap)) {
        tiles.emplace_back();
        for (const TileSpan& columns : cutIntoTiles(g.width, g.tile_width, g.overlap)) {
          tiles.back().push_back(at::randn({rows.length * scale, columns.length * scale, 3}));
          const at::Tensor weights = blendWeights(rows, columns, scale);
          cropped(sum, rows, columns, scale).add_(tiles.back().back().mul(weights));
          cropped(weight, rows, columns, scale).add_(weights);
        }
      }
      CHECK(maxAbsDifference(weight, at::ones(weight.sizes())) <= 1e-6);
      CHECK(maxAbsDifference(sum, blendedInTurn(tiles, g, scale)) <= 2e-6);
    }
  }
}

at::Tensor decodeTiled(const AutoencoderKLWan& model, const at::Tensor& latents, const Tiling& tiling) {
  mesh::ProcessGroup alone;
  TiledDecoding decoding(model, latents, tiling, mesh::TileShare(alone));
  std::vector<at::Tensor> frames;
  while (!decoding.done()) {
    if (const at::Tensor chunk = decoding.next(); chunk.defined()) frames.push_back(chunk);
  }
  return at::cat(frames);
}

TEST_CASE("tiled decode: every golden is matched", "[vae]") {
  size_t decodes = 0;
  for (const Oracle& oracle : oracles()) {
    for (const std::string name : {"wan21-t2v", "wan22-ti2v-5b"}) {
      for (const std::string& file : oracle.goldens(name, "tiled_vae")) {
        const Golden golden(oracle, file);
        const AutoencoderKLWan model = load(oracle.checkpoint(name));
        const int64_t scale = model.config().spatialFactor();
        for (int i = 0; golden.has(fmt::format("dec{}.z", i)); ++i) {
          INFO(oracle.name << ": " << file << ", dec" << i);
          const at::Tensor tile = golden.tensor(fmt::format("dec{}.tile", i));
          const auto latents = [&](int64_t entry) { return tile[entry].item<int64_t>() / scale; };
          const at::Tensor frames = decodeTiled(model, golden.tensor(fmt::format("dec{}.z", i)),
                                                {.height = latents(0), .width = latents(1), .overlap = latents(2)});
          CHECK(maxAbsDifference(frames.permute({3, 0, 1, 2}).unsqueeze(0),
                                 golden.tensor(fmt::format("dec{}.out", i))) <= kVideoTolerance);
          ++decodes;
        }
      }
    }
  }
  REQUIRE(decodes > 0);
}

TEST_CASE("tiled decode: frames leave, complete, while the last tile is decoded", "[vae]") {
  const AutoencoderKLWan model = load(oracles().front().checkpoint("wan21-t2v"));
  const at::Tensor latents = at::randn({1, model.config().z_dim, 3, 3, 5});
  const Tiling tiling{.height = 2, .width = 4, .overlap = 1};
  mesh::ProcessGroup alone;
  TiledDecoding decoding(model, latents, tiling, mesh::TileShare(alone));
  // In height 0-1, 1-2 and 2, in width 0-3 and 3-4.
  const auto tiles = static_cast<int64_t>(cutIntoTiles(3, 2, 1).size() * cutIntoTiles(5, 4, 1).size());
  CHECK(tiles == 6);
  CHECK(decoding.chunks() == 3 * tiles);
  std::vector<int64_t> lengths;
  for (int64_t chunk = 0; !decoding.done(); ++chunk) {
    const at::Tensor frames = decoding.next();
    CHECK(frames.defined() == (chunk >= 3 * (tiles - 1)));
    if (frames.defined()) lengths.push_back(frames.size(0));
  }
  CHECK(lengths == std::vector<int64_t>{1, 4, 4});
}

TEST_CASE("tiled decode: one tile is the whole decode", "[vae]") {
  const AutoencoderKLWan model = load(oracles().front().checkpoint("wan21-t2v"));
  const at::Tensor latents = at::randn({1, model.config().z_dim, 2, 3, 2});
  const at::Tensor whole = testing::decodeFrames(model, latents);
  CHECK(decodeTiled(model, latents, {.height = 4, .width = 4, .overlap = 0}).equal(whole));
}

}  // namespace
}  // namespace latentd::stages::vae

namespace latentd::stages {
namespace {

using latentd::testing::containsText;
using testing::context;
using testing::inputs;
using testing::jobOf;
using testing::oracles;
using testing::problem;
using testing::RecordingContext;

LoadContext tiled(const std::string& height, const std::string& width, const std::string& overlap) {
  LoadContext load = context(oracles().front().checkpoint("wan21-t2v"));
  load.options = {{"tile_height", height}, {"tile_width", width}, {"tile_overlap", overlap}};
  return load;
}

std::vector<at::Tensor> decode(VaeDecoderStage& stage, const at::Tensor& latents, RecordingContext& run) {
  REQUIRE(problem(stage.run("decode", jobOf(latents), inputs("latents", latents), run).status()) == "");
  return run.written;
}

TEST_CASE("VAE decoder stage: images larger than a tile are decoded in tiles, a step for each chunk of each", "[vae]") {
  VaeDecoderStage stage;
  REQUIRE(problem(stage.load(tiled("16", "24", "8"))) == "");
  REQUIRE(problem(stage.warmUp()) == "");
  VaeDecoderStage whole;
  testing::loadInto(whole, oracles().front().checkpoint("wan21-t2v"));
  // Two tiles beside each other: 3 latents, then the last 2 of 4.
  const at::Tensor latents = at::randn({1, 16, 2, 1, 4});
  RecordingContext run;
  RecordingContext untiled;
  const at::Tensor video = at::cat(decode(stage, latents, run));
  const at::Tensor exact = at::cat(decode(whole, latents, untiled));
  CHECK(run.events == std::vector<std::string>{"begin 0/4", "end 0/4", "begin 1/4", "end 1/4", "begin 2/4", "write 1",
                                               "end 2/4", "begin 3/4", "write 4", "end 3/4"});
  const vae::AutoencoderKLWan model = vae::load(oracles().front().checkpoint("wan21-t2v"));
  const at::Tensor tiles = vae::decodeTiled(model, model.denormalise(latents), {.height = 2, .width = 3, .overlap = 1});
  CHECK(video.equal(tiles.mul(0.5).add(0.5)));
  // Tiles do not see what is beyond them.
  CHECK(video.sizes() == exact.sizes());
  CHECK_FALSE(video.equal(exact));
  // What fits into a tile is decoded whole, bit for bit.
  const at::Tensor small = at::randn({1, 16, 2, 2, 3});
  RecordingContext one;
  RecordingContext other;
  CHECK(at::cat(decode(stage, small, one)).equal(at::cat(decode(whole, small, other))));
  CHECK(one.events == other.events);
  // A cancelled job leaves nothing for the next.
  RecordingContext cancelled;
  cancelled.cancel_at = 2;
  CHECK(stage.run("decode", jobOf(latents), inputs("latents", latents), cancelled).status().code() ==
        absl::StatusCode::kCancelled);
  RecordingContext again;
  CHECK(at::cat(decode(stage, latents, again)).equal(video));
}

TEST_CASE("VAE decoder stage: tiles that cannot be are refused at load, by option", "[vae]") {
  const auto refusal = [](const LoadContext& load, const std::string& field) {
    VaeDecoderStage stage;
    const Status status = stage.load(load);
    CHECK(status.code() == absl::StatusCode::kInvalidArgument);
    CHECK(fieldOf(status) == field);
    return messageOf(status);
  };
  CHECK_THAT(refusal(tiled("20", "24", "8"), "options.tile_height"),
             containsText("20") && containsText("multiple of 8"));
  CHECK_THAT(refusal(tiled("24", "30", "8"), "options.tile_width"), containsText("30") && containsText("nearest: 32"));
  CHECK_THAT(refusal(tiled("24", "24", "5"), "options.tile_overlap"), containsText("5") && containsText("nearest: 8"));
  CHECK_THAT(refusal(tiled("24", "32", "16"), "options.tile_overlap"),
             containsText("16") && containsText("at most half"));
  CHECK_THAT(refusal(tiled("24", "0", "8"), "options.tile_width"), containsText("tile_height and tile_width"));
  CHECK_THAT(refusal(tiled("x", "24", "8"), "options.tile_height"), containsText("\"x\""));
  CHECK(VaeDecoderStage().options().size() == 3);
}

}  // namespace
}  // namespace latentd::stages
