#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "mesh/tile_share.h"
#include "stages/vae/autoencoder_kl_wan.h"
#include "stages/vae/tiling.h"

namespace latentd::stages::vae {

// A decode, for a device without the memory for whole images, that takes one tile after the other through all of time:
// what the decoder remembers and works with is one tile's, and only the sum of all tiles, in float32, is the whole
// video's. Frames are complete, and leave chunk by chunk, while the last tile is decoded. Ranks may share the tiles.
// Owner: its caller; the autoencoder outlives it. Thread: one. States: next() until done(). Failure: c10::Error, and
// CommunicationError where tiles are shared.
class TiledDecoding {
 public:
  // latents: [1, z, T, H, W], whole on every rank, as the decoder takes them.
  TiledDecoding(const AutoencoderKLWan& model, const at::Tensor& latents, const Tiling& tiling,
                const mesh::TileShare& share);

  int64_t chunks() const { return rounds_ * frames_; }
  bool done() const { return next_ == chunks(); }
  // Decodes one latent frame of one tile. The next frames [T, H, W, 3] in [-1, 1] if that completes them and this rank
  // leads, else an undefined tensor.
  at::Tensor next();

 private:
  struct Tile {
    TileSpan rows;
    TileSpan columns;
  };
  // Frames of the video that latent frame `latent` becomes.
  at::Tensor framesOf(int64_t latent) const;
  void begin(int64_t round);
  void add(int64_t latent);

  const AutoencoderKLWan& model_;
  const mesh::TileShare share_;
  const int64_t scale_;  // patches for a latent
  at::Tensor latents_;
  const int64_t frames_;  // latent ones
  std::vector<Tile> tiles_;
  int64_t rounds_;
  int64_t next_ = 0;
  at::Tensor sum_;     // [T, H, W, C] of patches, weighted
  at::Tensor weight_;  // [H, W, 1]: that of the tiles in sum_
  // The tile under way; absent in a round for which there is none left.
  std::optional<AutoencoderKLWan::Decoding> decoding_;
  Tile tile_;
  at::Tensor tile_weight_;
};

}  // namespace latentd::stages::vae
