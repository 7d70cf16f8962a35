#include "stages/vae/autoencoder_kl_wan.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tests/stages/cuda_device.h"
#include "tests/stages/golden.h"
#include "tests/stages/vae/model_fixture.h"

namespace latentd::stages::vae {
namespace {

using testing::asVideo;
using testing::Golden;
using testing::loadVae;
using testing::maxAbsDifference;
using testing::Oracle;
using testing::oracles;
using testing::problem;
using testing::rmsDifference;

constexpr const char* kModels[] = {"wan21-t2v", "wan22-a14b", "wan21-i2v", "wan22-ti2v-5b"};
// Of float32 against the reference: one stage, and pixels.
constexpr double kStageTolerance = 2e-5;
constexpr double kVideoTolerance = 5e-5;

// What is not normalised (hidden activations, the encoder's raw moments) is larger than what leaves a stage, and its
// rounding with it.
double toleranceFor(const at::Tensor& expected) {
  return kStageTolerance * std::max(1.0, expected.std().item<double>());
}

at::Tensor decodeAll(const AutoencoderKLWan& model, const at::Tensor& latents) {
  std::vector<at::Tensor> videos;
  for (const at::Tensor& one : latents.split(1))
    videos.push_back(asVideo(testing::decodeFrames(model, one)));
  return at::cat(videos);
}

at::Tensor encodeAll(const AutoencoderKLWan& model, const at::Tensor& video) {
  auto encoding = model.encode(video);
  while (!encoding.done())
    encoding.next();
  return encoding.moments();
}

// Every golden VAE of every oracle that has it.
void forEachGolden(const std::function<void(const Oracle&, const std::string&, const Golden&)>& visit) {
  size_t visited = 0;
  for (const Oracle& oracle : oracles()) {
    for (const std::string model : kModels) {
      for (const std::string& name : oracle.goldens(model, "vae")) {
        INFO(oracle.name << ": " << name);
        visit(oracle, oracle.checkpoint(model), Golden(oracle, name));
        ++visited;
      }
    }
  }
  REQUIRE(visited > 0);
}

TEST_CASE("autoencoder: every golden decode is matched", "[vae]") {
  forEachGolden([](const Oracle&, const std::string& checkpoint, const Golden& golden) {
    const AutoencoderKLWan model = loadVae(checkpoint);
    for (int i = 0; golden.has(fmt::format("dec{}.latents", i)); ++i) {
      INFO("dec" << i);
      const at::Tensor latents = model.denormalise(golden.tensor(fmt::format("dec{}.latents", i)));
      if (i == 0) CHECK(maxAbsDifference(latents, golden.tensor("dec0.z")) == 0.0);
      CHECK(maxAbsDifference(decodeAll(model, latents), golden.tensor(fmt::format("dec{}.out", i))) <= kVideoTolerance);
    }
  });
}

TEST_CASE("autoencoder: every part of the decoder is matched, chunk by chunk", "[vae]") {
  forEachGolden([](const Oracle&, const std::string& checkpoint, const Golden& golden) {
    const AutoencoderKLWan model = loadVae(checkpoint);
    const Decoder& decoder = model.decoder();
    const at::Tensor latents = golden.tensor("dec0.post_quant_conv.frame0");
    FeatureCache cache;
    const auto check = [&](const std::string& part, int64_t chunk, const at::Tensor& actual) {
      const std::string name = fmt::format("dec0.{}.frame{}", part, chunk);
      INFO(name);
      const at::Tensor expected = golden.tensor(name);
      CHECK(maxAbsDifference(asVideo(actual), expected) <= toleranceFor(expected));
    };
    for (int64_t chunk = 0; chunk < latents.size(2); ++chunk) {
      cache.beginChunk();
      const at::Tensor frame = latents.narrow(2, chunk, 1).squeeze(0).permute({1, 2, 3, 0}).contiguous();
      at::Tensor hidden = decoder.enter(frame, cache);
      check("decoder.conv_in", chunk, hidden);
      hidden = decoder.middle(hidden, cache);
      check("decoder.mid_block", chunk, hidden);
      for (size_t i = 0; i < 2; ++i) {  // the goldens keep the first two
        hidden = decoder.up(i, hidden, cache);
        check(fmt::format("decoder.up_blocks.{}", i), chunk, hidden);
      }
      for (size_t i = 2; i < decoder.upBlocks(); ++i)
        hidden = decoder.up(i, hidden, cache);
      decoder.leave(hidden, cache);
    }
  });
}

TEST_CASE("autoencoder: every golden encode is matched", "[vae]") {
  forEachGolden([](const Oracle&, const std::string& checkpoint, const Golden& golden) {
    const AutoencoderKLWan model = loadVae(checkpoint);
    for (int i = 0; golden.has(fmt::format("enc{}.video", i)); ++i) {
      INFO("enc" << i);
      const at::Tensor moments = encodeAll(model, golden.tensor(fmt::format("enc{}.video", i)));
      const at::Tensor mean = model.mode(moments);
      const at::Tensor expected_mean = golden.tensor(fmt::format("enc{}.mean", i));
      CHECK(maxAbsDifference(mean, expected_mean) <= toleranceFor(expected_mean));
      const at::Tensor log_variance = moments.narrow(1, model.config().z_dim, model.config().z_dim).clamp(-30.0, 20.0);
      const at::Tensor expected_variance = golden.tensor(fmt::format("enc{}.logvar", i));
      CHECK(maxAbsDifference(log_variance, expected_variance) <= toleranceFor(expected_variance));
      CHECK(maxAbsDifference(model.normalise(mean), golden.tensor(fmt::format("enc{}.normalized", i))) <=
            kStageTolerance);
    }
  });
}

TEST_CASE("autoencoder: bfloat16 is as near to float32 as the reference's", "[vae]") {
  forEachGolden([](const Oracle&, const std::string& checkpoint, const Golden& golden) {
    const AutoencoderKLWan model = loadVae(checkpoint, {.dtype = at::kBFloat16});
    const at::Tensor decoded = decodeAll(model, model.denormalise(golden.tensor("dec0.latents")));
    CHECK(decoded.scalar_type() == at::kBFloat16);
    const at::Tensor exact = golden.tensor("dec0.out");
    INFO("ours " << rmsDifference(decoded, exact) << " theirs "
                 << rmsDifference(golden.tensor("dec0.out_bf16"), exact));
    CHECK(rmsDifference(decoded, exact) <= rmsDifference(golden.tensor("dec0.out_bf16"), exact));
  });
}

TEST_CASE("autoencoder: on a device every golden decode and encode is matched to 1e-4", "[vae][cuda]") {
  if (!testing::hasCuda()) return;
  forEachGolden([](const Oracle&, const std::string& checkpoint, const Golden& golden) {
    const AutoencoderKLWan model = loadVae(checkpoint, {.dtype = at::kFloat, .device = testing::cudaDevice()});
    for (int i = 0; golden.has(fmt::format("dec{}.latents", i)); ++i) {
      INFO("dec" << i);
      const at::Tensor latents = model.denormalise(golden.tensor(fmt::format("dec{}.latents", i)));
      CHECK(latents.device() == testing::cudaDevice());
      CHECK(maxAbsDifference(decodeAll(model, latents), golden.tensor(fmt::format("dec{}.out", i))) <= 1e-4);
    }
    for (int i = 0; golden.has(fmt::format("enc{}.video", i)); ++i) {
      INFO("enc" << i);
      const at::Tensor mean = model.mode(encodeAll(model, golden.tensor(fmt::format("enc{}.video", i))));
      CHECK(maxAbsDifference(model.normalise(mean), golden.tensor(fmt::format("enc{}.normalized", i))) <= 1e-4);
    }
  });
}

TEST_CASE("autoencoder: on a device 16-bit types are as near to float32 as the reference's", "[vae][cuda]") {
  if (!testing::hasCuda()) return;
  const auto dtype = GENERATE(at::kBFloat16, at::kHalf);
  forEachGolden([&](const Oracle&, const std::string& checkpoint, const Golden& golden) {
    const AutoencoderKLWan model = loadVae(checkpoint, {.dtype = dtype, .device = testing::cudaDevice()});
    const at::Tensor decoded = decodeAll(model, model.denormalise(golden.tensor("dec0.latents")));
    CHECK(decoded.scalar_type() == dtype);
    const at::Tensor exact = golden.tensor("dec0.out");
    const double bfloat16 = rmsDifference(golden.tensor("dec0.out_bf16"), exact);
    INFO("of the reference's " << rmsDifference(decoded, exact) / bfloat16);
    // As many roundings as the reference has, but other ones: its error is one draw. Float16 has three bits more; half
    // of them is a safe claim.
    CHECK(rmsDifference(decoded, exact) <= (dtype == at::kHalf ? bfloat16 / 4 : 1.25 * bfloat16));
  });
}

TEST_CASE("autoencoder: on a device pixels without any channel are zero, not nothing", "[vae][cuda]") {
  if (!testing::hasCuda()) return;
  const AutoencoderKLWan model =
      loadVae(oracles().front().checkpoint("wan21-t2v"), {.dtype = at::kFloat, .device = testing::cudaDevice()});
  CHECK(decodeAll(model, at::zeros({1, model.config().z_dim, 2, 2, 2})).isfinite().all().item<bool>());
}

TEST_CASE("autoencoder: later latent frames may be decoded together", "[vae]") {
  const AutoencoderKLWan model = loadVae(oracles().front().checkpoint("wan21-t2v"));
  for (const auto& [height, width] : std::vector<std::pair<int64_t, int64_t>>{{3, 2}, {1, 5}, {1, 1}}) {
    const at::Tensor frames = at::randn({6, height, width, model.config().z_dim});
    std::vector<at::Tensor> videos;
    for (const std::vector<int64_t>& chunks :
         std::vector<std::vector<int64_t>>{{1, 1, 1, 1, 1, 1}, {1, 5}, {1, 2, 3}, {1, 1, 3, 1}}) {
      FeatureCache cache;
      std::vector<at::Tensor> parts;
      int64_t begin = 0;
      for (int64_t length : chunks) {
        cache.beginChunk();
        parts.push_back(model.decoder().forward(frames.narrow(0, begin, length), cache));
        begin += length;
      }
      videos.push_back(at::cat(parts));
      CHECK(videos.back().sizes() == at::IntArrayRef({21, 8 * height, 8 * width, 3}));
      CHECK(maxAbsDifference(videos.back(), videos.front()) <= kVideoTolerance);
    }
  }
}

TEST_CASE("autoencoder: what is decoded does not depend on later frames, nor on another decode under way", "[vae]") {
  const AutoencoderKLWan model = loadVae(oracles().front().checkpoint("wan21-t2v"));
  const at::Tensor latents = at::randn({1, model.config().z_dim, 4, 2, 3});
  auto longer = model.decode(latents);
  auto shorter = model.decode(latents.narrow(2, 0, 2));
  while (!shorter.done())
    CHECK(longer.next().equal(shorter.next()));
  CHECK_FALSE(longer.done());
}

TEST_CASE("autoencoder: shapes of encode and decode, any number of frames", "[vae]") {
  const AutoencoderKLWan model = loadVae(oracles().front().checkpoint("wan21-t2v"));
  const VaeConfig& config = model.config();
  for (int64_t frames : {1, 2, 4, 5, 8, 9, 14}) {
    INFO(frames << " frames");
    const at::Tensor video = at::randn({1, 3, frames, 16, 8}).clamp(-1.0, 1.0);
    const at::Tensor moments = encodeAll(model, video);
    const int64_t latent_frames = config.latentFrames(frames);
    CHECK(moments.sizes() == at::IntArrayRef({1, 2 * config.z_dim, latent_frames, 2, 1}));
    // Frames past 1 + 4k are dropped.
    const at::Tensor whole = encodeAll(model, video.narrow(2, 0, config.frames(latent_frames)));
    CHECK(moments.equal(whole));
    const at::Tensor decoded = decodeAll(model, model.mode(moments));
    CHECK(decoded.sizes() == at::IntArrayRef({1, 3, config.frames(latent_frames), 16, 8}));
    CHECK(decoded.abs().max().item<double>() <= 1.0);
  }
}

TEST_CASE("autoencoder: normalise undoes denormalise", "[vae]") {
  const AutoencoderKLWan model = loadVae(oracles().front().checkpoint("wan21-t2v"));
  const at::Tensor latents = at::randn({1, model.config().z_dim, 2, 3, 3});
  const at::Tensor there = model.denormalise(latents);
  CHECK(maxAbsDifference(model.normalise(there), latents) <= 1e-6);
  CHECK(maxAbsDifference(there, latents) > 0.5);
}

}  // namespace
}  // namespace latentd::stages::vae
