#include "stages/vae/autoencoder_kl_wan.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/randn.h>
#include <fmt/format.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/stages/golden.h"

namespace latentd::stages::vae {
namespace {

using testing::Golden;
using testing::maxAbsDifference;
using testing::Oracle;
using testing::oracles;
using testing::problem;
using testing::rmsDifference;

constexpr const char* kModels[] = {"wan21-t2v", "wan22-a14b", "wan21-i2v", "wan22-ti2v-5b"};
// Of float32 against the reference: one stage, and pixels.
constexpr double kStageTolerance = 2e-5;
constexpr double kVideoTolerance = 5e-5;

AutoencoderKLWan load(const std::string& checkpoint, at::ScalarType dtype = at::kFloat) {
  auto model = AutoencoderKLWan::load(checkpoint + "/vae", {.dtype = dtype});
  REQUIRE(problem(model.status()) == "");
  return *std::move(model);
}

// [T, H, W, C] as the reference has it.
at::Tensor asVideo(const at::Tensor& frames) { return frames.permute({3, 0, 1, 2}).unsqueeze(0); }

at::Tensor decodeAll(const AutoencoderKLWan& model, const at::Tensor& latents) {
  std::vector<at::Tensor> videos;
  for (const at::Tensor& one : latents.split(1)) {
    auto decoding = model.decode(one);
    std::vector<at::Tensor> chunks;
    while (!decoding.done())
      chunks.push_back(decoding.next());
    videos.push_back(asVideo(at::cat(chunks)));
  }
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
    const AutoencoderKLWan model = load(checkpoint);
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
    const AutoencoderKLWan model = load(checkpoint);
    const Decoder& decoder = model.decoder();
    const at::Tensor latents = golden.tensor("dec0.post_quant_conv.frame0");
    FeatureCache cache;
    const auto check = [&](const std::string& part, int64_t chunk, const at::Tensor& actual) {
      const std::string name = fmt::format("dec0.{}.frame{}", part, chunk);
      INFO(name);
      CHECK(maxAbsDifference(asVideo(actual), golden.tensor(name)) <= kStageTolerance);
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
    const AutoencoderKLWan model = load(checkpoint);
    for (int i = 0; golden.has(fmt::format("enc{}.video", i)); ++i) {
      INFO("enc" << i);
      const at::Tensor moments = encodeAll(model, golden.tensor(fmt::format("enc{}.video", i)));
      const at::Tensor mean = model.mode(moments);
      CHECK(maxAbsDifference(mean, golden.tensor(fmt::format("enc{}.mean", i))) <= kStageTolerance);
      const at::Tensor log_variance = moments.narrow(1, model.config().z_dim, model.config().z_dim);
      CHECK(maxAbsDifference(log_variance.clamp(-30.0, 20.0), golden.tensor(fmt::format("enc{}.logvar", i))) <=
            kStageTolerance);
      CHECK(maxAbsDifference(model.normalise(mean), golden.tensor(fmt::format("enc{}.normalized", i))) <=
            kStageTolerance);
    }
  });
}

TEST_CASE("autoencoder: bfloat16 is as near to float32 as the reference's", "[vae]") {
  forEachGolden([](const Oracle&, const std::string& checkpoint, const Golden& golden) {
    const AutoencoderKLWan model = load(checkpoint, at::kBFloat16);
    const at::Tensor decoded = decodeAll(model, model.denormalise(golden.tensor("dec0.latents")));
    CHECK(decoded.scalar_type() == at::kBFloat16);
    const at::Tensor exact = golden.tensor("dec0.out");
    INFO("ours " << rmsDifference(decoded, exact) << " theirs "
                 << rmsDifference(golden.tensor("dec0.out_bf16"), exact));
    CHECK(rmsDifference(decoded, exact) <= rmsDifference(golden.tensor("dec0.out_bf16"), exact));
  });
}

}  // namespace
}  // namespace latentd::stages::vae
