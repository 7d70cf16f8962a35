#pragma once

#include <string>
#include <utility>
#include <vector>

#include <ATen/ops/cat.h>

#include "stages/vae/autoencoder_kl_wan.h"
#include "tests/stages/golden.h"
#include "tests/support/catch.h"

// What tests of the VAE itself share.
namespace latentd::stages::testing {

inline vae::AutoencoderKLWan loadVae(const std::string& checkpoint,
                                     const vae::AutoencoderKLWan::LoadOptions& options = {}) {
  auto model = vae::AutoencoderKLWan::load(checkpoint + "/vae", options);
  REQUIRE(problem(model.status()) == "");
  return *std::move(model);
}

// [T, H, W, C], as frames leave the decoder, as the reference has them: [1, C, T, H, W].
inline at::Tensor asVideo(const at::Tensor& frames) { return frames.permute({3, 0, 1, 2}).unsqueeze(0); }

// The frames of one video, chunk by chunk: [T, H, W, C].
inline at::Tensor decodeFrames(const vae::AutoencoderKLWan& model, const at::Tensor& latents) {
  auto decoding = model.decode(latents);
  std::vector<at::Tensor> chunks;
  while (!decoding.done())
    chunks.push_back(decoding.next());
  return at::cat(chunks);
}

}  // namespace latentd::stages::testing
