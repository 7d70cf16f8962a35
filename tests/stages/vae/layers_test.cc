#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/conv3d.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/upsample_nearest2d.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

#include "stages/vae/causal_conv3d.h"
#include "stages/vae/convolution.h"
#include "stages/vae/resample.h"
#include "tests/stages/golden.h"
#include "tests/stages/temp_checkpoint.h"

namespace latentd::stages::vae {
namespace {

using testing::maxAbsDifference;

// Sums of at most a few hundred products of about 1 * 0.1.
constexpr double kTolerance = 2e-5;

using Parameters = std::vector<std::pair<std::string, at::Tensor>>;

// A checkpoint with these float32 tensors.
void writeParameters(const testing::TempCheckpoint& files, const Parameters& parameters) {
  std::string header = "{";
  std::string data;
  for (const auto& [name, tensor] : parameters) {
    const at::Tensor dense = tensor.contiguous();
    const size_t begin = data.size();
    data.append(static_cast<const char*>(dense.const_data_ptr()), dense.nbytes());
    std::string shape;
    for (int64_t size : dense.sizes())
      shape += (shape.empty() ? "" : ",") + std::to_string(size);
    header += fmt::format(R"({}"{}":{{"dtype":"F32","shape":[{}],"data_offsets":[{},{}]}})", header == "{" ? "" : ",",
                          name, shape, begin, data.size());
  }
  files.writeSafetensors("model.safetensors", header + "}", data);
}

// A layer made by load(loader) from these parameters, all of which it takes.
template <class Load>
auto makeLayer(const Parameters& parameters, const Load& load) {
  const testing::TempCheckpoint files;
  writeParameters(files, parameters);
  auto reader = WeightReader::open(files.path());
  REQUIRE(testing::problem(reader.status()) == "");
  auto layer = load(LayerLoader{.reader = &*reader});
  REQUIRE(testing::problem(reader->finish()) == "");
  return layer;
}

at::Tensor weights(at::IntArrayRef shape) { return at::randn(shape).mul(0.1); }

// [T, H, W, C] to [1, C, T, H, W] and back.
at::Tensor toVideo(const at::Tensor& frames) { return frames.permute({3, 0, 1, 2}).unsqueeze(0).contiguous(); }
at::Tensor toFrames(const at::Tensor& video) { return video.squeeze(0).permute({1, 2, 3, 0}).contiguous(); }

TEST_CASE("convolution: as the library's, in time and frame by frame, for odd channels too", "[vae]") {
  for (const auto& [in, out] : std::vector<std::pair<int64_t, int64_t>>{{1, 3}, {5, 16}, {16, 16}, {20, 7}, {32, 48}}) {
    INFO(in << " to " << out);
    const at::Tensor bias = at::randn({out});
    const at::Tensor frames = at::randn({4, 6, 7, in});
    const at::Tensor cube = weights({out, in, 3, 3, 3});
    const Convolution in_time({.in = in, .out = out, .kernel = {3, 3, 3}, .stride = {1, 1, 1}, .padding = {0, 1, 1}},
                              cube, bias);
    const at::Tensor expected = toFrames(at::conv3d(toVideo(frames), cube, bias, {1, 1, 1}, {0, 1, 1}));
    CHECK(maxAbsDifference(in_time.forward(frames), expected) <= kTolerance);
    CHECK(in_time.forward(frames).is_contiguous());
    const at::Tensor sum = at::randn(expected.sizes());
    const at::Tensor expected_sum = expected.add(sum);
    in_time.addTo(sum, frames);
    CHECK(maxAbsDifference(sum, expected_sum) <= kTolerance);

    const at::Tensor square = weights({out, in, 3, 3});
    const Convolution by_frame({.in = in, .out = out, .kernel = {3, 3}, .stride = {2, 2}, .padding = {0, 0}}, square,
                               bias);
    const at::Tensor images = frames.permute({0, 3, 1, 2}).contiguous();
    CHECK(maxAbsDifference(by_frame.forward(frames).permute({0, 3, 1, 2}), at::conv2d(images, square, bias, {2, 2})) <=
          kTolerance);
  }
}

TEST_CASE("convolution: a dense input whose unit dimensions have odd strides", "[vae]") {
  const at::Tensor weight = weights({4, 2, 2, 2});
  const at::Tensor bias = at::randn({4});
  const Convolution layer({.in = 2, .out = 4, .kernel = {2, 2}, .stride = {1, 1}, .padding = {1, 1}}, weight, bias);
  const at::Tensor frames = at::randn({2, 1, 1, 2});
  const at::Tensor odd = frames.as_strided({2, 1, 1, 2}, {2, 4, 4, 1});
  REQUIRE(odd.is_contiguous());
  const at::Tensor expected = at::conv2d(frames.permute({0, 3, 1, 2}).contiguous(), weight, bias, {1, 1}, {1, 1});
  CHECK(maxAbsDifference(layer.forward(odd).permute({0, 3, 1, 2}), expected) <= kTolerance);
}

TEST_CASE("causal convolution: chunks of any length give what the whole gives", "[vae]") {
  constexpr int64_t kIn = 6;
  constexpr int64_t kOut = 9;
  const at::Tensor weight = weights({kOut, kIn, 3, 3, 3});
  const at::Tensor bias = at::randn({kOut});
  const auto layer = makeLayer({{"weight", weight}, {"bias", bias}}, [](const LayerLoader& loader) {
    return CausalConv3d::load(loader, {.in = kIn, .out = kOut});
  });
  const at::Tensor frames = at::randn({9, 5, 4, kIn});
  const at::Tensor padded = at::constant_pad_nd(toVideo(frames), {0, 0, 0, 0, 2, 0});
  const at::Tensor expected = toFrames(at::conv3d(padded, weight, bias, {1, 1, 1}, {0, 1, 1}));
  for (const std::vector<int64_t>& chunks :
       std::vector<std::vector<int64_t>>{{9}, {1, 1, 1, 1, 1, 1, 1, 1, 1}, {1, 4, 4}, {2, 1, 3, 3}, {5, 1, 1, 2}}) {
    FeatureCache cache;
    std::vector<at::Tensor> outputs;
    int64_t begin = 0;
    for (int64_t length : chunks) {
      cache.beginChunk();
      outputs.push_back(layer.forward(cache, frames.narrow(0, begin, length)));
      begin += length;
    }
    CHECK(maxAbsDifference(at::cat(outputs), expected) <= kTolerance);
    CHECK(cache.slots() == 1);
    CHECK(cache.bytes() == 2 * 5 * 4 * kIn * sizeof(float));  // the last two frames
  }
}

TEST_CASE("causal convolution: adding to a sum is the same as adding afterwards", "[vae]") {
  const auto layer =
      makeLayer({{"weight", weights({8, 8, 3, 3, 3})}, {"bias", at::randn({8})}},
                [](const LayerLoader& loader) { return CausalConv3d::load(loader, {.in = 8, .out = 8}); });
  const at::Tensor frames = at::randn({3, 4, 4, 8});
  const at::Tensor sum = at::randn({3, 4, 4, 8});
  FeatureCache one;
  one.beginChunk();
  const at::Tensor expected = layer.forward(one, frames).add(sum);
  FeatureCache other;
  other.beginChunk();
  const auto input = layer.prepare(other, frames.sizes(), frames.options());
  input.chunk.copy_(frames);
  layer.addTo(sum, input);
  // Both remember the chunk.
  one.beginChunk();
  other.beginChunk();
  CHECK(layer.forward(one, frames).equal(layer.forward(other, frames)));
  CHECK(maxAbsDifference(sum, expected) <= kTolerance);
}

TEST_CASE("upsample: the four places are the nearest neighbour's image, convolved", "[vae]") {
  for (const auto& [height, width] : std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {2, 5}, {6, 3}}) {
    const at::Tensor weight = weights({5, 10, 3, 3});
    const at::Tensor bias = at::randn({5});
    const auto layer = makeLayer({{"resample.1.weight", weight}, {"resample.1.bias", bias}},
                                 [](const LayerLoader& loader) { return Upsample::load(loader, 10, 5, false); });
    const at::Tensor frames = at::randn({3, height, width, 10});
    const at::Tensor doubled = at::upsample_nearest2d(frames.permute({0, 3, 1, 2}), {2 * height, 2 * width});
    const at::Tensor expected = at::conv2d(doubled, weight, bias, {1, 1}, {1, 1}).permute({0, 2, 3, 1});
    FeatureCache cache;
    cache.beginChunk();
    CHECK(maxAbsDifference(layer.forward(frames, cache), expected) <= kTolerance);
  }
}

TEST_CASE("upsample in time: one frame first, unseen; then an even and an odd frame of each", "[vae]") {
  constexpr int64_t kIn = 2;
  // The spatial convolution passes channel 0 of its centre through; the temporal one gives its frame plus ten times the
  // frame before plus a hundred times the one before that, and for the odd frames a thousand more.
  at::Tensor centre = at::zeros({1, kIn, 3, 3});
  centre.select(0, 0).select(0, 0).select(0, 1).select(0, 1).fill_(1.0);
  at::Tensor taps = at::zeros({2 * kIn, kIn, 3, 1, 1});
  for (int64_t out : {0, 2})
    taps.select(0, out).select(0, 0).view({3}).copy_(at::tensor({100.0F, 10.0F, 1.0F}));
  const auto layer = makeLayer({{"resample.1.weight", centre},
                                {"resample.1.bias", at::zeros({1})},
                                {"time_conv.weight", taps},
                                {"time_conv.bias", at::tensor({0.0F, 0.0F, 1000.0F, 0.0F})}},
                               [](const LayerLoader& loader) { return Upsample::load(loader, kIn, 1, true); });
  FeatureCache cache;
  const auto run = [&](const std::vector<float>& values) {
    cache.beginChunk();
    const at::Tensor input = at::tensor(values).view({-1, 1, 1, 1}).repeat({1, 1, 1, kIn});
    const at::Tensor output = layer.forward(input, cache);
    CHECK(output.sizes().slice(1) == at::IntArrayRef({2, 2, 1}));
    const at::Tensor corner = output.select(1, 0).select(1, 0).contiguous();
    return std::vector<float>(corner.const_data_ptr<float>(), corner.const_data_ptr<float>() + corner.numel());
  };
  CHECK(run({7}) == std::vector<float>{7});
  CHECK(run({1}) == std::vector<float>{1, 1001});  // the first frame is not remembered
  CHECK(run({2}) == std::vector<float>{12, 1012});
  CHECK(run({3, 4}) == std::vector<float>{123, 1123, 234, 1234});
}

TEST_CASE("downsample in time: the first chunk is kept, then pairs with the frame before", "[vae]") {
  const auto layer = makeLayer({{"resample.1.weight", at::ones({1, 1, 3, 3})},
                                {"resample.1.bias", at::zeros({1})},
                                {"time_conv.weight", at::tensor({100.0F, 10.0F, 1.0F}).view({1, 1, 3, 1, 1})},
                                {"time_conv.bias", at::zeros({1})}},
                               [](const LayerLoader& loader) { return Downsample::load(loader, 1, true); });
  FeatureCache cache;
  const auto run = [&](const std::vector<float>& values) {
    cache.beginChunk();
    // 2x2 pixels and the padding at the right and bottom: the window's sum is four pixels.
    const at::Tensor output = layer.forward(at::tensor(values).view({-1, 1, 1, 1}).repeat({1, 2, 2, 1}), cache);
    return std::vector<float>(output.const_data_ptr<float>(), output.const_data_ptr<float>() + output.numel());
  };
  CHECK(run({1}) == std::vector<float>{4});
  CHECK(run({2, 3}) == std::vector<float>{4 * 123});
  CHECK(run({4, 5, 6, 7}) == std::vector<float>{4 * 345, 4 * 567});
}

TEST_CASE("shortcuts: averages down and duplicates up in the reference's order", "[vae]") {
  const at::Tensor input = at::arange(2 * 2 * 2 * 2, at::kFloat).view({2, 2, 2, 2});
  const at::Tensor down = AverageDown{.out = 2, .time_factor = 2, .space_factor = 2}.forward(input);
  CHECK(down.sizes() == at::IntArrayRef({1, 1, 1, 2}));
  CHECK(down.flatten().equal(at::tensor({7.0F, 8.0F})));  // channel 0 has the even numbers
  const at::Tensor wide = AverageDown{.out = 16, .time_factor = 2, .space_factor = 2}.forward(input);
  const std::vector<float> order = {0, 2, 4, 6, 8, 10, 12, 14,
                                    1, 3, 5, 7, 9, 11, 13, 15};  // channel, time, row, column
  CHECK(wide.flatten().equal(at::tensor(order)));
  // One frame of two: zeros come in front.
  const at::Tensor single = AverageDown{.out = 1, .time_factor = 2, .space_factor = 1}.forward(at::ones({1, 1, 1, 1}));
  CHECK(single.item<float>() == 0.5F);

  const DuplicateUp spread{.out = 1, .time_factor = 2, .space_factor = 2};
  const at::Tensor pixel = at::arange(8, at::kFloat).view({1, 1, 1, 8});
  const at::Tensor up = spread.forward(pixel, false);
  CHECK(up.sizes() == at::IntArrayRef({2, 2, 2, 1}));
  CHECK(up.flatten().equal(at::arange(8, at::kFloat)));  // time, row, column
  CHECK(spread.forward(pixel, true).flatten().equal(at::arange(4, 8, at::kFloat)));
  // Channels are repeated next to each other: 0, 0, 1, 1.
  const at::Tensor pair = at::tensor({0.0F, 1.0F}).view({1, 1, 1, 2});
  const at::Tensor repeated = DuplicateUp{.out = 1, .time_factor = 1, .space_factor = 2}.forward(pair, false);
  CHECK(repeated.flatten().equal(at::tensor({0.0F, 0.0F, 1.0F, 1.0F})));
}

TEST_CASE("patches: channel, then column, then row; and back", "[vae]") {
  const at::Tensor frames = at::arange(2 * 3, at::kFloat).view({1, 2, 1, 3}).repeat({1, 1, 2, 1}).clone();
  frames.select(2, 1).add_(100);  // the second column
  const at::Tensor patched = patchify(frames, 2);
  CHECK(patched.flatten().equal(
      at::tensor({0.0F, 3.0F, 100.0F, 103.0F, 1.0F, 4.0F, 101.0F, 104.0F, 2.0F, 5.0F, 102.0F, 105.0F})));
  const at::Tensor any = at::randn({2, 6, 8, 3});
  CHECK(unpatchify(patchify(any, 2), 2).equal(any));
  CHECK(patchify(any, 1).is_same(any));
}

}  // namespace
}  // namespace latentd::stages::vae
