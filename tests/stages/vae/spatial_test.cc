#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/randn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <functional>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "mesh/spatial_shard.h"
#include "runtime/base/status_field.h"
#include "stages/token_video.h"
#include "stages/vae/autoencoder_kl_wan.h"
#include "stages/vae/vae_decoder_stage.h"
#include "stages/vae/vae_encoder_stage.h"
#include "tests/mesh/ranks.h"
#include "tests/stages/cuda_device.h"
#include "tests/stages/golden.h"
#include "tests/stages/vae/model_fixture.h"
#include "tests/stages/vae/stage_fixture.h"
#include "tests/support/contains_text.h"

// The VAE over several ranks, each a process.
namespace latentd::stages {
namespace {

using latentd::testing::containsText;
using mesh::HaloExchange;
using mesh::MeshDim;
using mesh::SpatialShard;
using mesh::testing::ChildRank;
using mesh::testing::Ranks;
using testing::Golden;
using testing::maxAbsDifference;
using testing::Oracle;
using testing::oracles;
using testing::problem;
using testing::RecordingContext;
using vae::AutoencoderKLWan;

constexpr const char* kModels[] = {"wan21-t2v", "wan22-a14b", "wan21-i2v", "wan22-ti2v-5b"};
// Of float32: latents, and pixels; of either on a device.
constexpr double kTolerance = 2e-5;
constexpr double kVideoTolerance = 5e-5;
constexpr double kDeviceTolerance = 1e-4;

double toleranceOn(const AutoencoderKLWan& model, double on_cpu) {
  return model.device().is_cpu() ? on_cpu : kDeviceTolerance;
}

// Ways to share `height` rows: as evenly as it goes, most on one rank, and at random. The same on every rank.
std::vector<std::vector<int64_t>> waysToShare(int64_t height, int ranks) {
  std::vector<std::vector<int64_t>> ways = {SpatialShard::cut(height, ranks)};
  if (height == ranks) return ways;
  std::vector<int64_t> lopsided(ranks, 1);
  lopsided.back() = height - ranks + 1;
  ways.push_back(lopsided);
  std::mt19937 random(static_cast<uint32_t>(height * 10 + ranks));
  std::vector<int64_t> drawn(ranks, 1);
  for (int64_t rest = height - ranks; rest > 0; --rest)
    ++drawn[random() % ranks];
  ways.push_back(drawn);
  return ways;
}

// [1, 3, T, H, W], on the first rank.
at::Tensor decodeShared(const AutoencoderKLWan& model, const SpatialShard& shard, const at::Tensor& latents) {
  auto decoding = model.decode(shard.slice(latents, 3, 1), &shard);
  std::vector<at::Tensor> frames;
  while (!decoding.done()) {
    const at::Tensor rows = decoding.next();
    CHECK(rows.size(1) == shard.localHeight() * model.config().spatialFactor());
    if (const at::Tensor chunk = shard.gatherTo(0, rows, 1); chunk.defined()) frames.push_back(chunk);
  }
  return frames.empty() ? at::Tensor() : testing::asVideo(at::cat(frames));
}

at::Tensor decodeAlone(const AutoencoderKLWan& model, const at::Tensor& latents) {
  return testing::asVideo(testing::decodeFrames(model, latents));
}

at::Tensor encode(const AutoencoderKLWan& model, const at::Tensor& video, const SpatialShard* shard) {
  auto encoding = model.encode(video, shard);
  while (!encoding.done())
    encoding.next();
  return model.normalise(model.mode(encoding.moments()));
}

void forEachGolden(at::Device device, const std::function<void(const AutoencoderKLWan&, const Golden&)>& visit) {
  for (const Oracle& oracle : oracles()) {
    for (const std::string model : kModels) {
      for (const std::string& name : oracle.goldens(model, "vae")) {
        INFO(oracle.name << ": " << name);
        visit(testing::loadVae(oracle.checkpoint(model), {.device = device}), Golden(oracle, name));
      }
    }
  }
}

void decodesAsOne(HaloExchange& halo, const AutoencoderKLWan& model, const at::Tensor& latents,
                  const at::Tensor& golden) {
  const int ranks = halo.group().size();
  if (latents.size(3) < ranks) return;
  const at::Tensor alone = halo.group().rank() == 0 ? decodeAlone(model, latents) : at::Tensor();
  for (const std::vector<int64_t>& heights : waysToShare(latents.size(3), ranks)) {
    INFO(fmt::format("heights {}", fmt::join(heights, " + ")));
    const at::Tensor shared = decodeShared(model, SpatialShard(halo, heights), latents);
    CHECK(shared.defined() == (halo.group().rank() == 0));
    if (!shared.defined()) continue;
    // Convolutions of a few rows take other kernels than those of many.
    CHECK(maxAbsDifference(shared, alone) <= toleranceOn(model, kVideoTolerance));
    if (golden.defined()) CHECK(maxAbsDifference(shared, golden) <= toleranceOn(model, kVideoTolerance));
  }
}

void encodesAsOne(HaloExchange& halo, const AutoencoderKLWan& model, const at::Tensor& video,
                  const at::Tensor& golden) {
  const int ranks = halo.group().size();
  const int64_t factor = model.config().spatialFactor();
  if (video.size(3) / factor < ranks) return;
  const at::Tensor alone = encode(model, video, nullptr);
  for (const std::vector<int64_t>& heights : waysToShare(video.size(3) / factor, ranks)) {
    INFO(fmt::format("heights {}", fmt::join(heights, " + ")));
    const SpatialShard shard(halo, heights);
    const at::Tensor rows = encode(model, shard.slice(video, 3, factor), &shard);
    CHECK(rows.size(3) == shard.localHeight());
    const at::Tensor shared = shard.gather(rows, 3);
    CHECK(maxAbsDifference(shared, alone) <= toleranceOn(model, kTolerance));
    if (golden.defined()) CHECK(maxAbsDifference(shared, golden) <= toleranceOn(model, kTolerance));
  }
}

TEST_CASE("rank that shares the goldens", "[.][child]") {
  ChildRank rank;
  HaloExchange halo(rank.mesh().group(MeshDim::kSpatial));
  forEachGolden(at::Device(rank.setup()), [&](const AutoencoderKLWan& model, const Golden& golden) {
    for (int i = 0; golden.has(fmt::format("dec{}.latents", i)); ++i) {
      const at::Tensor latents = golden.tensor(fmt::format("dec{}.latents", i));
      if (latents.size(0) > 1) continue;  // several jobs
      INFO("dec" << i);
      decodesAsOne(halo, model, model.denormalise(latents), golden.tensor(fmt::format("dec{}.out", i)));
    }
    for (int i = 0; golden.has(fmt::format("enc{}.video", i)); ++i) {
      INFO("enc" << i);
      encodesAsOne(halo, model, golden.tensor(fmt::format("enc{}.video", i)),
                   golden.tensor(fmt::format("enc{}.normalized", i)));
    }
  });
  CHECK(halo.bufferBytes() > 0);
}

TEST_CASE("rank that shares other sizes", "[.][child]") {
  ChildRank rank;
  HaloExchange halo(rank.mesh().group(MeshDim::kSpatial));
  const AutoencoderKLWan model = testing::loadVae(testing::trimmedOracle().checkpoint("wan21-t2v"));
  std::mt19937 random(static_cast<uint32_t>(std::stoul(rank.setup())));
  const auto between = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  auto generator = at::detail::createCPUGenerator(random());
  for (int i = 0; i < 3; ++i) {
    const int64_t height = between(halo.group().size(), halo.group().size() + 4);
    const int64_t width = between(1, 4);
    const int64_t frames = between(1, 4);
    INFO(fmt::format("{} latent frames of {}x{}", frames, height, width));
    const at::Tensor latents = at::randn({1, model.config().z_dim, frames, height, width}, generator);
    decodesAsOne(halo, model, model.denormalise(latents), {});
    const at::Tensor video =
        at::randn({1, 3, model.config().frames(frames), 8 * height, 8 * width}, generator).clamp_(-1, 1);
    encodesAsOne(halo, model, video, {});
  }
}

// Values of one row in front of every spatial convolution of the decoder, for one latent frame.
int64_t valuesOfHalos(const vae::VaeConfig& config, int64_t width, bool first_chunk) {
  int64_t frames = 1;
  int64_t values = 0;
  const auto convolve = [&](int64_t channels) { values += frames * width * channels; };
  const auto blocks = static_cast<int64_t>(config.dim_mult.size());
  int64_t channels = config.decoder_base_dim * config.dim_mult.back();
  convolve(config.z_dim);
  for (int i = 0; i < 4; ++i)  // two residual blocks in the middle
    convolve(channels);
  for (int64_t i = 0; i < blocks; ++i) {
    const int64_t out = config.decoder_base_dim * config.dim_mult[blocks - 1 - i];
    if (i > 0 && !config.is_residual) channels /= 2;
    for (int64_t layer = 0; layer <= config.num_res_blocks; ++layer) {
      convolve(channels);
      convolve(out);
      channels = out;
    }
    if (i + 1 == blocks) break;
    if (config.temporal_downsample[blocks - 2 - i] && !first_chunk) frames *= 2;
    convolve(out);
    width *= 2;
  }
  convolve(channels);
  return values;
}

TEST_CASE("rank that counts what it sends", "[.][child]") {
  ChildRank rank;
  mesh::ProcessGroup& group = rank.mesh().group(MeshDim::kSpatial);
  HaloExchange halo(group);
  for (const std::string name : {"wan21-t2v", "wan22-a14b"}) {
    const AutoencoderKLWan model = testing::loadVae(testing::trimmedOracle().checkpoint(name));
    constexpr int64_t kWidth = 5;
    constexpr int64_t kTallest = 3;
    const SpatialShard shard(halo, {1, 2, kTallest});
    auto decoding = model.decode(at::randn({1, model.config().z_dim, 3, shard.localHeight(), kWidth}), &shard);
    const int64_t neighbours = group.rank() == 1 ? 2 : 1;
    const int64_t widest = model.config().decoder_base_dim * model.config().dim_mult.back();
    // Keys and values of the tallest shard, to both other ranks.
    const int64_t attention = 2 * kTallest * kWidth * 2 * widest;
    std::vector<uint64_t> buffers;
    for (int chunk = 0; chunk < 3; ++chunk) {
      const uint64_t before = group.bytesSent();
      decoding.next();
      const int64_t values = neighbours * valuesOfHalos(model.config(), kWidth, chunk == 0) + attention;
      CHECK(group.bytesSent() - before == values * sizeof(float));
      buffers.push_back(halo.bufferBytes());
    }
    CHECK(buffers[2] == buffers[1]);
  }
}

// A stage as a worker loads it.
template <class StageType>
struct LoadedStage {
  explicit LoadedStage(ChildRank& rank, std::map<std::string, std::string> options = {})
      : group(rank.mesh().group(MeshDim::kSpatial)) {
    LoadContext load = testing::context(testing::trimmedOracle().checkpoint("wan21-t2v"));
    load.mesh = &rank.mesh();
    load.degrees.spatial = rank.mesh().degree(MeshDim::kSpatial);
    load.options = std::move(options);
    REQUIRE(problem(stage.load(load)) == "");
    REQUIRE(problem(stage.warmUp()) == "");
    run.has_sink = group.rank() == 0;
  }

  Status decode(const at::Tensor& given, const SamplingParameters& job) {
    return stage.run("decode", job, testing::inputs("latents", given), run).status();
  }

  mesh::ProcessGroup& group;
  StageType stage;
  RecordingContext run;
};

at::Tensor seeded(at::IntArrayRef shape) { return at::randn(shape, at::detail::createCPUGenerator(5)); }

// What one rank makes of the same job.
at::Tensor videoAlone(const at::Tensor& latents, const std::map<std::string, std::string>& options = {}) {
  VaeDecoderStage stage;
  LoadContext load = testing::context(testing::trimmedOracle().checkpoint("wan21-t2v"));
  load.options = options;
  REQUIRE(problem(stage.load(load)) == "");
  RecordingContext run;
  REQUIRE(problem(stage.run("decode", testing::jobOf(latents), testing::inputs("latents", latents), run).status()) ==
          "");
  return at::cat(run.written);
}

// The rows of rank `me`, of `whole`, as an edge brings tokens.
TensorTree inTokens(const at::Tensor& rows, int64_t whole, int64_t me) {
  TokenVideo video = patchify(rows, {1, 1, 1});
  video.grid.rows = whole;
  video.cut = TokenCut::kRows;
  video.begin = std::vector<int64_t>{0, 2, 3}[me];
  TensorTree::Dict dict;
  dict.entries.emplace_back("latents", toTree(video));
  return TensorTree(std::move(dict));
}

TEST_CASE("rank of a decoder stage", "[.][child]") {
  ChildRank rank;
  REQUIRE(rank.mesh().degree(MeshDim::kSpatial) == 3);
  const at::Tensor latents = seeded({1, 16, 3, 5, 3});
  const SamplingParameters job = testing::jobOf(latents);
  const int me = rank.mesh().group(MeshDim::kSpatial).rank();
  const at::Tensor exact = me == 0 ? videoAlone(latents) : at::Tensor();
  const auto rows = [&](const std::vector<int64_t>& heights) {
    return latents.narrow(3, std::accumulate(heights.begin(), heights.begin() + me, int64_t{0}), heights[me]);
  };
  // Whole on every rank; in the heights that an edge with consumer_shard_dim 3 may give; in tokens by rows.
  const std::vector<TensorTree> ways = {testing::inputs("latents", latents),
                                        testing::inputs("latents", rows({2, 2, 1})),
                                        testing::inputs("latents", rows({1, 1, 3})), inTokens(rows({2, 1, 2}), 5, me)};
  LoadedStage<VaeDecoderStage> decoder(rank);
  CHECK(decoder.stage.methods()[0].token_inputs.at("latents") == TokenCut::kRows);
  CHECK(decoder.stage.methods()[0].sliced_input_dims == std::vector<int32_t>{3});
  for (const TensorTree& given : ways) {
    decoder.run.events.clear();
    decoder.run.written.clear();
    REQUIRE(problem(decoder.stage.run("decode", job, given, decoder.run).status()) == "");
    if (me == 0) {
      CHECK(maxAbsDifference(at::cat(decoder.run.written), exact) <= kTolerance);
      // The first frame leaves before the next chunk is decoded.
      CHECK(decoder.run.events == std::vector<std::string>{"begin 0/3", "write 1", "end 0/3", "begin 1/3", "write 4",
                                                           "end 1/3", "begin 2/3", "write 4", "end 2/3"});
    } else {
      CHECK(decoder.run.events ==
            std::vector<std::string>{"begin 0/3", "end 0/3", "begin 1/3", "end 1/3", "begin 2/3", "end 2/3"});
    }
  }
}

TEST_CASE("rank of a decoder stage that is stopped", "[.][child]") {
  ChildRank rank;
  LoadedStage<VaeDecoderStage> decoder(rank);
  const at::Tensor latents = seeded({1, 16, 3, 4, 2});
  const SamplingParameters job = testing::jobOf(latents);
  const bool leads = decoder.group.rank() == 0;
  REQUIRE(problem(decoder.decode(latents, job)) == "");
  const auto written = std::exchange(decoder.run.written, {});
  const auto worksAgain = [&] {
    decoder.run.written.clear();
    decoder.run.cancel_at = UINT32_MAX;
    REQUIRE(problem(decoder.decode(latents, job)) == "");
    if (leads) CHECK(at::cat(decoder.run.written).equal(at::cat(written)));
    decoder.run.written.clear();
  };
  // Cancelled at the same step everywhere: nobody is left in an exchange.
  for (const uint32_t step : {0U, 1U, 2U}) {
    decoder.run.cancel_at = step;
    CHECK(decoder.decode(latents, job).code() == absl::StatusCode::kCancelled);
    worksAgain();
  }
  // Inputs that cannot be shared are refused by all alike.
  const at::Tensor low = latents.narrow(3, 0, 1);
  const Status too_low = decoder.decode(low, testing::jobOf(low));
  CHECK(too_low.code() == absl::StatusCode::kInvalidArgument);
  CHECK_THAT(messageOf(too_low),
             containsText("height 8") && containsText("from 16 on") && containsText("parallel.spatial"));
  const Status missing = decoder.decode(latents.narrow(3, 0, 1), job);
  CHECK(missing.code() == absl::StatusCode::kInvalidArgument);
  CHECK_THAT(messageOf(missing), containsText("heights 1 + 1") && containsText("expected 4"));
  const Status none = decoder.decode(latents.narrow(3, 0, leads ? 4 : 0), job);
  CHECK_THAT(messageOf(none), containsText("heights 4 + 0"));
  worksAgain();
}

TEST_CASE("rank of an encoder stage", "[.][child]") {
  ChildRank rank;
  LoadedStage<VaeEncoderStage> encoder(rank);
  const Golden golden(testing::trimmedOracle(), "wan21-t2v/vae");
  for (int i = 0; golden.has(fmt::format("enc{}.video", i)); ++i) {
    INFO("enc" << i);
    const at::Tensor video = golden.tensor(fmt::format("enc{}.video", i));
    const int64_t rows = video.size(3) / 8;
    const auto heights = SpatialShard::cut(rows, encoder.group.size());
    const int64_t start = encoder.group.rank() == 0 ? 0 : heights[0];
    for (const at::Tensor& given : {video, video.narrow(3, 8 * start, 8 * heights[encoder.group.rank()])}) {
      const auto outputs = encoder.stage.run("encode", testing::job(video.size(2), video.size(3), video.size(4)),
                                             testing::inputs("video", given), encoder.run);
      REQUIRE(problem(outputs.status()) == "");
      CHECK(maxAbsDifference(*outputs->find("latents")->getIf<at::Tensor>(),
                             golden.tensor(fmt::format("enc{}.normalized", i))) <= kTolerance);
    }
  }
}

TEST_CASE("rank that shares tiles", "[.][child]") {
  ChildRank rank;
  const std::map<std::string, std::string> options = {
      {"tile_height", "16"}, {"tile_width", "16"}, {"tile_overlap", "8"}};
  LoadedStage<VaeDecoderStage> decoder(rank, options);
  const bool leads = decoder.group.rank() == 0;
  // Six tiles, three, and twelve: in the last round there may be one for some ranks only.
  for (const at::Tensor& latents : {seeded({1, 16, 2, 3, 2}), seeded({1, 16, 2, 1, 3}), seeded({1, 16, 1, 4, 3})}) {
    decoder.run.written.clear();
    decoder.run.events.clear();
    REQUIRE(problem(decoder.decode(latents, testing::jobOf(latents))) == "");
    if (!leads) continue;
    CHECK(maxAbsDifference(at::cat(decoder.run.written), videoAlone(latents, options)) <= 2e-6);
  }
  // Tiles are cut from whole latents.
  const at::Tensor latents = seeded({1, 16, 2, 4, 3});
  CHECK(decoder.stage.methods()[0].token_inputs.at("latents") == TokenCut::kNone);
  CHECK(decoder.stage.methods()[0].sliced_input_dims.empty());
  const Status part = decoder.decode(latents.narrow(3, 0, 2), testing::jobOf(latents));
  CHECK(part.code() == absl::StatusCode::kInvalidArgument);
}

void onRanks(const std::string& test_case, uint32_t ranks, const std::string& setup = "",
             at::Device device = at::kCPU) {
  INFO(ranks << " ranks, setup " << setup);
  Ranks(test_case, {.degrees = {.spatial = ranks}, .setup = setup, .device = device}).requireSuccess();
}

TEST_CASE("spatial VAE: goldens decode and encode over ranks as on one, in even and uneven shards", "[vae][mesh]") {
  for (const uint32_t ranks : {2U, 4U})
    onRanks("rank that shares the goldens", ranks, "cpu");
}

TEST_CASE("spatial VAE: on a device that they share, goldens decode and encode over ranks as on one", "[vae][cuda]") {
  if (!testing::hasCuda()) return;
  for (const uint32_t ranks : {2U, 4U})
    onRanks("rank that shares the goldens", ranks, testing::kCudaName, testing::cudaDevice());
}

TEST_CASE("spatial VAE: any size and number of frames, over ranks as on one", "[vae][mesh]") {
  for (const uint32_t ranks : {2U, 3U})
    onRanks("rank that shares other sizes", ranks, std::to_string(ranks));
}

TEST_CASE("spatial VAE: any size and number of frames, many, up to 8 ranks", "[.][long]") {
  const auto seed = GENERATE(range(0, 10));
  for (const uint32_t ranks : {2U, 3U, 4U, 8U})
    onRanks("rank that shares other sizes", ranks, std::to_string(100 * seed + ranks));
}

TEST_CASE("spatial VAE: a rank sends a row of each layer's new frames to each neighbour, and no more", "[vae][mesh]") {
  onRanks("rank that counts what it sends", 3);
}

TEST_CASE("VAE decoder stage: ranks share a job, and the first one's frames leave chunk by chunk", "[vae][mesh]") {
  onRanks("rank of a decoder stage", 3);
}

TEST_CASE("VAE decoder stage: a job that is stopped or refused leaves no rank behind", "[vae][mesh]") {
  onRanks("rank of a decoder stage that is stopped", 2);
}

TEST_CASE("VAE encoder stage: ranks share a job, and have the whole latents", "[vae][mesh]") {
  onRanks("rank of an encoder stage", 2);
}

TEST_CASE("VAE decoder stage: ranks share the tiles of images", "[vae][mesh]") {
  for (const uint32_t ranks : {2U, 3U})
    onRanks("rank that shares tiles", ranks);
}

TEST_CASE("VAE stages: degrees along which a VAE has nothing to share are refused, by key", "[vae]") {
  for (const bool decodes : {true, false}) {
    LoadContext load = testing::context(testing::trimmedOracle().checkpoint("wan21-t2v"));
    load.check_only = true;
    load.degrees.spatial = 4;
    VaeDecoderStage decoder;
    VaeEncoderStage encoder;
    Stage& stage = decodes ? static_cast<Stage&>(decoder) : encoder;
    CHECK(problem(stage.load(load)) == "");
    CHECK(stage.limits().height_shards == 4U);
    load.degrees.ulysses = 2;
    const Status refused = stage.load(load);
    CHECK(refused.code() == absl::StatusCode::kInvalidArgument);
    CHECK(fieldOf(refused) == "parallel.ulysses");
    CHECK_THAT(messageOf(refused), containsText("parallel.ulysses = 2") && containsText("spatial"));
  }
}

}  // namespace
}  // namespace latentd::stages
