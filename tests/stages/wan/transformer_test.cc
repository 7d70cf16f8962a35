#include "stages/wan/transformer.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/imag.h>
#include <ATen/ops/real.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <nlohmann/json.hpp>

#include "stages/wan/attention.h"
#include "stages/wan/layers.h"
#include "stages/wan/rope.h"
#include "tests/stages/cuda_device.h"
#include "tests/stages/golden.h"

namespace latentd::stages::wan {
namespace {

using testing::Golden;
using testing::maxAbsDifference;
using testing::Oracle;
using testing::problem;
using testing::rmsDifference;

// Rows of the context that the reference's pipeline gives the transformer.
constexpr int64_t kTextRows = 512;

WanTransformer load(const Oracle& oracle, const std::string& component, at::ScalarType dtype,
                    at::Device device = at::kCPU) {
  auto model = WanTransformer::load(oracle.checkpoint(component), {.dtype = dtype, .device = device});
  REQUIRE(problem(model.status()) == "");
  return *std::move(model);
}

at::Tensor padText(const at::Tensor& text) {
  return at::cat({text, at::zeros({text.size(0), kTextRows - text.size(1), text.size(2)})}, 1);
}

at::Tensor forward(const WanTransformer& model, const at::Tensor& latents, const at::Tensor& timesteps,
                   const TextContext& text) {
  return model.forward(latents, timesteps, text, model.rope().rotation(model.grid(latents.sizes())), attendTo);
}

struct Component {
  const char* model;
  const char* name;
};
const Component kComponents[] = {{"wan21-t2v", "transformer"},
                                 {"wan22-a14b", "transformer"},
                                 {"wan22-a14b", "transformer_2"},
                                 {"wan22-ti2v-5b", "transformer"}};

// Calls check(golden, case prefix, meta of the case, path of the component) for each case of each transformer.
void forEachCase(const std::function<void(const Oracle&, const std::string&, const Golden&, int)>& check) {
  for (const Oracle& oracle : testing::oracles()) {
    for (const Component& component : kComponents) {
      const std::string path = std::string(component.model) + "/" + component.name;
      if (!oracle.has("golden/" + path + ".safetensors")) {
        REQUIRE(std::string(component.model) == "wan22-ti2v-5b");  // which the trimmed set leaves out
        continue;
      }
      const Golden golden(oracle, path);
      for (int i = 0; golden.has("case" + std::to_string(i) + ".latents"); ++i) {
        INFO(oracle.name << " " << path << " case " << i);
        check(oracle, path, golden, i);
      }
    }
  }
}

at::Tensor runCase(const WanTransformer& model, const Golden& golden, int index) {
  const std::string prefix = "case" + std::to_string(index) + ".";
  const at::Tensor latents = golden.tensor(prefix + "latents");
  const at::Tensor text = padText(golden.tensor("text").slice(0, 0, latents.size(0)));
  return forward(model, latents, golden.tensor(prefix + "timestep"), model.textContext(text));
}

TEST_CASE("wan transformer: float32 outputs equal the reference's", "[wan][golden]") {
  int cases = 0;
  forEachCase([&](const Oracle& oracle, const std::string& path, const Golden& golden, int index) {
    const WanTransformer model = load(oracle, path, at::kFloat);
    const at::Tensor output = runCase(model, golden, index);
    CHECK(output.scalar_type() == at::kFloat);
    CHECK(maxAbsDifference(output, golden.tensor("case" + std::to_string(index) + ".out_fp32")) <= 2e-5);
    ++cases;
  });
  CHECK(cases >= 5);
}

TEST_CASE("wan transformer: bfloat16 is no further from the reference than its own bfloat16 from float32",
          "[wan][golden]") {
  forEachCase([](const Oracle& oracle, const std::string& path, const Golden& golden, int index) {
    const WanTransformer model = load(oracle, path, at::kBFloat16);
    const at::Tensor output = runCase(model, golden, index);
    const std::string prefix = "case" + std::to_string(index) + ".";
    CHECK(output.scalar_type() == at::kBFloat16);
    const double allowed = rmsDifference(golden.tensor(prefix + "out_bf16"), golden.tensor(prefix + "out_fp32"));
    CHECK(rmsDifference(output, golden.tensor(prefix + "out_bf16")) <= allowed);
    CHECK(rmsDifference(output, golden.tensor(prefix + "out_fp32")) <= 1.25 * allowed);
  });
}

TEST_CASE("wan transformer: on a device float32 is the reference's to 1e-4", "[wan][golden][cuda]") {
  if (!testing::hasCuda()) return;
  forEachCase([](const Oracle& oracle, const std::string& path, const Golden& golden, int index) {
    const WanTransformer model = load(oracle, path, at::kFloat, testing::cudaDevice());
    const at::Tensor output = runCase(model, golden, index);
    CHECK(output.device() == testing::cudaDevice());
    CHECK(maxAbsDifference(output, golden.tensor("case" + std::to_string(index) + ".out_fp32")) <= 1e-4);
  });
}

TEST_CASE("wan transformer: on a device 16-bit types are as near to float32 as the reference's",
          "[wan][golden][cuda]") {
  if (!testing::hasCuda()) return;
  const auto dtype = GENERATE(at::kBFloat16, at::kHalf);
  forEachCase([&](const Oracle& oracle, const std::string& path, const Golden& golden, int index) {
    const WanTransformer model = load(oracle, path, dtype, testing::cudaDevice());
    const at::Tensor output = runCase(model, golden, index);
    const std::string prefix = "case" + std::to_string(index) + ".";
    CHECK(output.scalar_type() == dtype);
    const at::Tensor exact = golden.tensor(prefix + "out_fp32");
    const double bfloat16 = rmsDifference(golden.tensor(prefix + "out_bf16"), exact);
    INFO("of the reference's " << rmsDifference(output, exact) / bfloat16);
    // As many roundings as the reference has, but other ones: its error is one draw. Float16 has three bits more; half
    // of them is a safe claim.
    CHECK(rmsDifference(output, exact) <= (dtype == at::kHalf ? bfloat16 / 4 : 1.25 * bfloat16));
  });
}

TEST_CASE("wan transformer: one latent serves several texts as copies of it do", "[wan][golden]") {
  for (const Oracle& oracle : testing::oracles()) {
    const Golden golden(oracle, "wan21-t2v/transformer");
    const WanTransformer model = load(oracle, "wan21-t2v/transformer", at::kFloat);
    const at::Tensor latents = golden.tensor("case0.latents");
    const at::Tensor timesteps = golden.tensor("case0.timestep");
    const at::Tensor texts = padText(golden.tensor("text"));
    const at::Tensor together = forward(model, latents, timesteps, model.textContext(texts));
    REQUIRE(together.size(0) == 2);
    for (int64_t i = 0; i < 2; ++i) {
      const at::Tensor alone = forward(model, latents, timesteps, model.textContext(texts.slice(0, i, i + 1)));
      CHECK(maxAbsDifference(together.slice(0, i, i + 1), alone) <= 1e-5);
    }
    const at::Tensor repeated =
        forward(model, latents.repeat({2, 1, 1, 1, 1}), timesteps.repeat({2}), model.textContext(texts));
    CHECK(maxAbsDifference(together, repeated) <= 1e-5);
  }
}

TEST_CASE("wan transformer: a timestep per batch or token is that of each", "[wan][golden]") {
  const Oracle oracle = testing::oracles().front();
  const Golden golden(oracle, "wan21-t2v/transformer");
  const WanTransformer model = load(oracle, "wan21-t2v/transformer", at::kFloat);
  const at::Tensor latents = golden.tensor("case0.latents").repeat({2, 1, 1, 1, 1});
  const TextContext text = model.textContext(padText(golden.tensor("text")));
  const at::Tensor times = at::cat({at::zeros({1}).add(999), at::zeros({1}).add(20)});
  const at::Tensor both = forward(model, latents, times, text);
  const Grid grid = model.grid(latents.sizes());
  const at::Tensor tokens = times.unsqueeze(1).expand({2, grid[0] * grid[1] * grid[2]});
  CHECK(maxAbsDifference(forward(model, latents, tokens, text), both) <= 1e-5);
  for (int64_t i = 0; i < 2; ++i) {
    const at::Tensor alone = forward(model, latents, times.slice(0, i, i + 1), text);
    CHECK(maxAbsDifference(both.slice(0, i, i + 1), alone.slice(0, i, i + 1)) <= 1e-5);
  }
}

TEST_CASE("wan transformer: padding of the text counts, row by row", "[wan][golden]") {
  const Oracle oracle = testing::oracles().front();
  const Golden golden(oracle, "wan21-t2v/transformer");
  const WanTransformer model = load(oracle, "wan21-t2v/transformer", at::kFloat);
  const at::Tensor latents = golden.tensor("case0.latents");
  const at::Tensor timesteps = golden.tensor("case0.timestep");
  const at::Tensor text = golden.tensor("text").slice(0, 0, 1);
  const at::Tensor padded = padText(text);
  const at::Tensor output = forward(model, latents, timesteps, model.textContext(padded));
  // Padding that is written out, in a context too short to be folded.
  const auto with_rows = [&](int64_t rows) {
    return forward(model, latents, timesteps, model.textContext(padded.slice(1, 0, rows)));
  };
  CHECK(maxAbsDifference(with_rows(41), with_rows(40)) > 1e-4);
  CHECK(maxAbsDifference(with_rows(511), output) > 1e-6);
  // A full prompt and an empty one have nothing, and nearly nothing, to keep.
  const at::Tensor full = padded.add(0.5);
  CHECK_FALSE(model.textContext(full).bias.defined());
  CHECK(model.textContext(full).blocks[0].key.size(1) == kTextRows);
  CHECK(model.textContext(at::zeros_like(padded)).blocks[0].key.size(1) <= 16);
}

TEST_CASE("wan transformer: rotation tables equal the reference's up to position 1023", "[wan][golden]") {
  for (const Oracle& oracle : testing::oracles()) {
    const Golden golden(oracle, "misc/misc");
    for (const int64_t head_dim : {12, 24, 28, 32, 40, 64, 128}) {
      const std::string prefix = "rope.hd" + std::to_string(head_dim) + ".";
      INFO(oracle.name << " " << prefix);
      const RopeTable rope(head_dim, 1024);
      const at::Tensor rows = rope.table().index_select(0, golden.tensor("rope.rows"));
      CHECK(maxAbsDifference(at::real(rows).repeat_interleave(2, 1), golden.tensor(prefix + "cos")) <= 1e-6);
      CHECK(maxAbsDifference(at::imag(rows).repeat_interleave(2, 1), golden.tensor(prefix + "sin")) <= 1e-6);
      const at::Tensor split = golden.tensor(prefix + "split_t_h_w");
      for (int64_t i = 0; i < 3; ++i)
        CHECK(rope.split()[i] == split[i].item<int64_t>());
    }
  }
}

TEST_CASE("wan transformer: sinusoids of timesteps equal the reference's", "[wan][golden]") {
  for (const Oracle& oracle : testing::oracles()) {
    const Golden golden(oracle, "misc/misc");
    for (const int64_t dim : {128, 256}) {
      CHECK(maxAbsDifference(sinusoid(golden.tensor("sincos.timesteps"), dim),
                             golden.tensor("sincos.freq" + std::to_string(dim))) <= 1e-6);
    }
  }
}

}  // namespace
}  // namespace latentd::stages::wan
