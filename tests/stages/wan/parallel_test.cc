// The denoiser over several ranks: what every topology computes is what one rank computes, and the reference.

#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "mesh/collectives.h"
#include "stages/token_video.h"
#include "stages/wan/denoiser.h"
#include "stages/wan/guided_model.h"
#include "tests/mesh/ranks.h"
#include "tests/mesh/topology_list.h"
#include "tests/stages/cuda_device.h"
#include "tests/stages/golden.h"
#include "tests/stages/wan/golden_pipeline.h"
#include "tests/stages/wan/step_recorder.h"

namespace latentd::stages {
namespace {

using mesh::Mesh;
using mesh::MeshDegrees;
using mesh::MeshDim;
using mesh::RingVariant;
using mesh::testing::ChildRank;
using mesh::testing::Ranks;
using testing::Golden;
using testing::GoldenPipeline;
using testing::maxAbsDifference;
using testing::Oracle;
using testing::problem;
using testing::StepRecorder;
using testing::tensorAt;
using wan::GuidedModel;
using wan::WanTransformer;

// Rows of the context that the reference's pipeline gives the transformer.
constexpr int64_t kTextRows = 512;
constexpr double kGuidance = 4.0;
constexpr const char* kAll = "all jobs";

const char* nameOf(RingVariant variant) { return variant == RingVariant::kExchange ? "exchange" : "all_gather"; }

std::vector<RingVariant> variantsFor(const Mesh& mesh) {
  if (mesh.degree(MeshDim::kRing) == 1) return {RingVariant::kExchange};
  return {RingVariant::kExchange, RingVariant::kAllGather};
}

// Every rank has the very same.
bool sameOnAllRanks(Mesh& mesh, const at::Tensor& tensor) {
  const at::Tensor all = mesh::allGatherStacked(mesh.world(), tensor);
  return all.eq(all.slice(0, 0, 1)).all().item<bool>();
}

// ---- the transformer ----------------------------------------------------------------------------------------

// mesh: null for one rank.
WanTransformer loadTransformer(const Oracle& oracle, const std::string& component, Mesh* mesh, at::Device device,
                               at::ScalarType dtype = at::kFloat) {
  WanTransformer::LoadOptions options{.dtype = dtype, .device = device};
  if (mesh != nullptr) {
    options.tensor_parallel = mesh::TensorParallel(mesh->group(MeshDim::kTensorParallel));
    options.pipeline = {mesh->degree(MeshDim::kPipeline), mesh->coordinate(MeshDim::kPipeline)};
  }
  auto model = WanTransformer::load(oracle.checkpoint(component), options);
  REQUIRE(problem(model.status()) == "");
  return *std::move(model);
}

at::Tensor padText(const at::Tensor& text) {
  return at::cat({text, at::zeros({text.size(0), kTextRows - text.size(1), text.size(2)})}, 1);
}

// The job of a golden case, with the first text as prompt; guided, with the second as its negative.
GuidedModel::Job jobOf(const Golden& golden, const at::Tensor& latents, bool guided) {
  GuidedModel::Job job{.guidance = kGuidance, .latent_shape = latents.sizes().vec()};
  const at::Tensor texts = golden.tensor("text");
  job.prompt = padText(texts.slice(0, 0, guided ? 1 : latents.size(0)));
  if (guided) job.negative = padText(texts.slice(0, 1, 2));
  return job;
}

at::Tensor velocityOf(GuidedModel& model, const at::Tensor& latents, const at::Tensor& timestep) {
  return model.whole(model.velocity(model.share(latents), timestep));
}

// Of a stage in float32.
double stageLimit(at::Device device) { return device.is_cuda() ? 1e-4 : 2e-5; }
// Of the latents after all steps.
double latentsLimit(at::Device device) { return device.is_cuda() ? 2e-4 : 1e-4; }

bool dividesHeads(const Mesh& mesh, const WanTransformer& model) {
  return model.config().heads % (mesh.degree(MeshDim::kUlysses) * mesh.degree(MeshDim::kTensorParallel)) == 0;
}

// Without guidance every case of the reference; with it the first, beside one rank.
void checkForward(ChildRank& rank, const Oracle& oracle, const std::string& component) {
  Mesh& mesh = rank.mesh();
  const WanTransformer alone = loadTransformer(oracle, component, nullptr, rank.device());
  if (!dividesHeads(mesh, alone)) return;
  const WanTransformer model = loadTransformer(oracle, component, &mesh, rank.device());
  const double allowed = stageLimit(rank.device());
  const Golden golden(oracle, component);
  for (const RingVariant ring : variantsFor(mesh)) {
    for (int i = 0; golden.has("case" + std::to_string(i) + ".latents"); ++i) {
      const std::string prefix = "case" + std::to_string(i) + ".";
      INFO(component << " " << prefix << nameOf(ring));
      const at::Tensor latents = golden.tensor(prefix + "latents").to(rank.device());
      GuidedModel unguided(model, &mesh, jobOf(golden, latents, false), {.ring = ring});
      const at::Tensor velocity = velocityOf(unguided, latents, golden.tensor(prefix + "timestep"));
      CHECK(maxAbsDifference(velocity, golden.tensor(prefix + "out_fp32")) <= allowed);
      CHECK(sameOnAllRanks(mesh, velocity));
    }
    const at::Tensor latents = golden.tensor("case0.latents").to(rank.device());
    const at::Tensor timestep = golden.tensor("case0.timestep");
    for (const bool batched : {true, false}) {
      INFO(component << " guided, " << nameOf(ring) << (batched ? ", batched" : ", separate"));
      const GuidedModel::Job job = jobOf(golden, latents, true);
      GuidedModel one(alone, nullptr, job, {.batched = batched});
      GuidedModel guided(model, &mesh, job, {.batched = batched, .ring = ring});
      const at::Tensor expected = velocityOf(one, latents, timestep);
      CHECK(maxAbsDifference(velocityOf(guided, latents, timestep), expected) <= allowed * kGuidance);
    }
  }
}

void checkForwardBFloat16(ChildRank& rank, const Oracle& oracle) {
  Mesh& mesh = rank.mesh();
  const Golden golden(oracle, "wan21-t2v/transformer");
  const WanTransformer model = loadTransformer(oracle, "wan21-t2v/transformer", &mesh, rank.device(), at::kBFloat16);
  const at::Tensor latents = golden.tensor("case0.latents").to(rank.device());
  GuidedModel::Job job = jobOf(golden, latents, false);
  job.prompt = job.prompt.to(at::kBFloat16);
  for (const RingVariant ring : variantsFor(mesh)) {
    GuidedModel unguided(model, &mesh, job, {.ring = ring});
    const at::Tensor velocity = velocityOf(unguided, latents, golden.tensor("case0.timestep"));
    CHECK(velocity.scalar_type() == at::kBFloat16);
    const double reference = testing::rmsDifference(golden.tensor("case0.out_bf16"), golden.tensor("case0.out_fp32"));
    // Sums of parts are rounded where one rank rounds once.
    CHECK(testing::rmsDifference(velocity, golden.tensor("case0.out_fp32")) <= 1.5 * reference);
  }
}

// ---- bytes --------------------------------------------------------------------------------------------------

uint64_t bytesSent(Mesh& mesh) {
  // Dimensions that are the same ranks are one group.
  std::set<const mesh::ProcessGroup*> groups;
  for (const MeshDim dim : mesh::kMeshDims)
    groups.insert(&mesh.group(dim));
  uint64_t bytes = 0;
  for (const mesh::ProcessGroup* group : groups)
    bytes += group->bytesSent();
  return bytes;
}

// What one rank gives in one guided step, in float32, by strategy.
struct StepBytes {
  uint64_t ulysses = 0;  // Q, K, V and the result of each attention, but for its own part
  uint64_t ring = 0;     // K and V of each attention to each of the other ranks
  uint64_t tp = 0;       // sums of three products and two statistics a block
  uint64_t pp = 0;       // features of each micro-batch to the next rank; the last: velocities to all others
  uint64_t cfg = 0;      // its velocity

  uint64_t sum() const { return ulysses + ring + tp + pp + cfg; }
};

StepBytes stepBytes(const Mesh& mesh, const wan::TransformerConfig& config, int64_t tokens, bool batched) {
  const uint64_t u = mesh.degree(MeshDim::kUlysses);
  const uint64_t r = mesh.degree(MeshDim::kRing);
  const uint64_t t = mesh.degree(MeshDim::kTensorParallel);
  const uint64_t p = mesh.degree(MeshDim::kPipeline);
  const bool cfg = mesh.degree(MeshDim::kCfg) == 2;
  const uint64_t rows = (tokens + u * r - 1) / (u * r);
  const uint64_t passes = !cfg && (!batched || p > 1) ? 2 : 1;
  const uint64_t batch = !cfg && passes == 1 ? 2 : 1;
  const uint64_t wide = rows * config.dim() * sizeof(float);
  const uint64_t velocity = rows * config.out_channels * config.patchVolume() * sizeof(float);
  const uint64_t rank = mesh.coordinate(MeshDim::kPipeline);
  const mesh::LayerRange layers = mesh::pipelineLayers(config.layers, p, static_cast<int64_t>(rank));

  StepBytes bytes;
  for (int64_t layer = layers.begin; layer < layers.end; ++layer) {
    // Before the first cross-attention both texts share one row.
    const uint64_t before = layer == 0 ? 1 : batch;
    const uint64_t attention = passes * before * wide / t;
    bytes.ulysses += 4 * attention / u * (u - 1);
    bytes.ring += 2 * attention * (r - 1);
    const uint64_t statistics = 3 * before * rows * sizeof(float);
    bytes.tp += passes * 2 * ((before + 2 * batch) * wide + statistics) * (t - 1) / t;
  }
  if (p > 1) bytes.pp = passes * (rank < p - 1 ? wide : velocity * (p - 1));
  if (cfg) bytes.cfg = velocity;
  return bytes;
}

// Of the second guided step of a job, as shapes go round with the first.
struct MeasuredStep {
  uint64_t bytes = 0;
  StepBytes expected;
};

MeasuredStep measureStep(ChildRank& rank, RingVariant ring, bool batched) {
  Mesh& mesh = rank.mesh();
  const Oracle oracle = testing::trimmedOracle();
  const WanTransformer model = loadTransformer(oracle, "wan21-t2v/transformer", &mesh, rank.device());
  const Golden golden(oracle, "wan21-t2v/transformer");
  const at::Tensor latents = golden.tensor("case0.latents").to(rank.device());
  const at::Tensor timestep = golden.tensor("case0.timestep");
  const wan::Grid grid = model.grid(latents.sizes());
  GuidedModel guided(model, &mesh, jobOf(golden, latents, true), {.batched = batched, .ring = ring});
  const at::Tensor share = guided.share(latents);
  guided.velocity(share, timestep);
  const uint64_t before = bytesSent(mesh);
  guided.velocity(share, timestep);
  return {bytesSent(mesh) - before, stepBytes(mesh, model.config(), grid[0] * grid[1] * grid[2], batched)};
}

void checkBytes(ChildRank& rank) {
  for (const RingVariant ring : variantsFor(rank.mesh())) {
    for (const bool batched : {true, false}) {
      INFO(nameOf(ring) << (batched ? ", batched" : ", separate"));
      const MeasuredStep step = measureStep(rank, ring, batched);
      CHECK(step.bytes == step.expected.sum());
    }
  }
}

// ---- the stage ----------------------------------------------------------------------------------------------

WanDenoiser loadDenoiser(const std::string& model_dir, Mesh* mesh, const MeshDegrees& degrees, RingVariant ring,
                         at::Device device, const std::string& latents = "whole") {
  WanDenoiser denoiser;
  REQUIRE(problem(denoiser.load({.model_dir = model_dir,
                                 .device = device.str(),
                                 .options = {{"ring_attention", nameOf(ring)}, {"latents", latents}},
                                 .degrees = degrees,
                                 .mesh = mesh})) == "");
  REQUIRE(problem(denoiser.warmUp()) == "");
  return denoiser;
}

MeshDegrees degreesOf(const Mesh& mesh) {
  return {.cfg = mesh.degree(MeshDim::kCfg),
          .ring = mesh.degree(MeshDim::kRing),
          .ulysses = mesh.degree(MeshDim::kUlysses),
          .pp = mesh.degree(MeshDim::kPipeline),
          .tp = mesh.degree(MeshDim::kTensorParallel)};
}

TensorTree outputsOf(WanDenoiser& denoiser, const GoldenPipeline& pipeline, const TensorTree& inputs) {
  StepRecorder context;
  auto outputs = denoiser.run("denoise", pipeline.parameters(), inputs, context);
  REQUIRE(problem(outputs.status()) == "");
  return *std::move(outputs);
}

at::Tensor denoise(WanDenoiser& denoiser, const GoldenPipeline& pipeline, const TensorTree& inputs) {
  return tensorAt(outputsOf(denoiser, pipeline, inputs), "latents");
}

// Without the option each rank of a sharded sequence returns its own tokens, and each token comes from one rank.
void checkTokens(ChildRank& rank, const GoldenPipeline& pipeline, const TensorTree& inputs, const at::Tensor& whole) {
  Mesh& mesh = rank.mesh();
  WanDenoiser denoiser =
      loadDenoiser(pipeline.modelDir(), &mesh, degreesOf(mesh), RingVariant::kExchange, rank.device(), "tokens");
  const TensorTree outputs = outputsOf(denoiser, pipeline, inputs);
  const bool sharded = mesh.shape().sequenceDegree() > 1;
  CHECK(denoiser.methods()[0].token_outputs.contains("latents") == sharded);
  if (!sharded) {
    CHECK(tensorAt(outputs, "latents").equal(whole));
    return;
  }
  const auto video = tokenVideoOf(*outputs.find("latents"), "latents");
  REQUIRE(problem(video.status()) == "");
  CHECK(video->cut == TokenCut::kTokens);
  const int64_t held = video->tokens.size(1);
  CHECK(video->tokens.equal(patchify(whole, video->patch).tokens.narrow(1, video->begin, held)));
  const auto begins = mesh::allGatherInt(mesh.world(), video->begin, rank.device());
  const auto counts = mesh::allGatherInt(mesh.world(), held, rank.device());
  int64_t next = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] > 0) CHECK(begins[i] == next);
    next += counts[i];
  }
  CHECK(next == video->grid.count());
}

// Every rank refuses the third step, as the step gate of a group has it, and a whole job follows.
void checkCancel(WanDenoiser& denoiser, const GoldenPipeline& pipeline, const TensorTree& inputs, double allowed) {
  StepRecorder context(2);
  const Status status = denoiser.run("denoise", pipeline.parameters(), inputs, context).status();
  CHECK(status.code() == absl::StatusCode::kCancelled);
  CHECK(context.finished() == std::vector<uint32_t>{0, 1});
  CHECK(maxAbsDifference(denoise(denoiser, pipeline, inputs), pipeline.expected()) <= allowed);
}

void checkDenoise(ChildRank& rank, const Oracle& oracle, const std::string& name) {
  Mesh& mesh = rank.mesh();
  const at::Device device = rank.device();
  const double allowed = latentsLimit(device);
  const GoldenPipeline pipeline(oracle, "wan21-t2v", name);
  const TensorTree inputs = pipeline.inputs(DType::kFloat32, device.str());
  for (const RingVariant ring : variantsFor(mesh)) {
    INFO(name << " " << nameOf(ring));
    WanDenoiser denoiser = loadDenoiser(pipeline.modelDir(), &mesh, degreesOf(mesh), ring, device);
    const at::Tensor latents = denoise(denoiser, pipeline, inputs);
    CHECK(maxAbsDifference(latents, pipeline.expected()) <= allowed);
    CHECK(sameOnAllRanks(mesh, latents));
    checkCancel(denoiser, pipeline, inputs, allowed);
    if (ring == RingVariant::kExchange) checkTokens(rank, pipeline, inputs, latents);
    // One rank is enough to see what one rank alone computes.
    if (mesh.rank() == Rank(0)) {
      WanDenoiser alone = loadDenoiser(pipeline.modelDir(), nullptr, {}, ring, device);
      CHECK(maxAbsDifference(latents, denoise(alone, pipeline, inputs)) <= allowed);
    }
  }
}

TEST_CASE("rank of a denoiser", "[.][child]") {
  ChildRank rank(ChildRank::Start::kNothing);
  const Oracle oracle = testing::trimmedOracle();
  // With guidance and without, of 18 and 8 tokens; then the other solver, and 6 and 4 tokens.
  std::vector<const char*> names = {"unipc6_cfg5", "unipc4_nocfg"};
  if (mesh::testing::firstLine(rank) == kAll) names.insert(names.end(), {"euler4", "one_frame_longprompt"});
  mesh::testing::forEachTopology(rank, [&](const MeshDegrees& degrees) {
    INFO(toString(degrees));
    checkForward(rank, oracle, "wan21-t2v/transformer");
    checkForward(rank, oracle, "wan22-a14b/transformer");
    checkForwardBFloat16(rank, oracle);
    checkBytes(rank);
    for (const char* name : names)
      checkDenoise(rank, oracle, std::string("wan21-t2v/pipeline_") + name);
  });
}

void requireParity(const std::vector<MeshDegrees>& topologies, const mesh::testing::RanksOptions& options = {}) {
  mesh::testing::requireTopologies("rank of a denoiser", topologies, options);
}

TEST_CASE("wan parallel: guidance and sequence on 2 to 4 ranks are one rank's and the reference's", "[wan][mesh]") {
  requireParity({{.cfg = 2},
                 {.ulysses = 2},
                 {.ring = 2},
                 {.ring = 3},
                 {.ulysses = 4},
                 {.cfg = 2, .ulysses = 2},
                 {.ring = 2, .ulysses = 2}});
}

TEST_CASE("wan parallel: heads scattered by direct writes are one rank's and the reference's", "[wan][mesh]") {
  requireParity({{.ulysses = 2}, {.ulysses = 4}, {.cfg = 2, .ulysses = 2}, {.ring = 2, .ulysses = 2}},
                {.ulysses = mesh::ScatterTransport::kDirect});
}

TEST_CASE("wan parallel: guidance, ring and ulysses on 8 ranks are one rank's and the reference's", "[wan][mesh]") {
  requireParity({{.cfg = 2, .ring = 2, .ulysses = 2}});
}

TEST_CASE("wan parallel: tensor parallel and pipelines are one rank's and the reference's", "[wan][mesh]") {
  requireParity({{.tp = 2}, {.tp = 4}, {.ulysses = 2, .tp = 2}, {.cfg = 2, .tp = 2}, {.pp = 2}, {.cfg = 2, .pp = 2}});
}

TEST_CASE("wan parallel: all jobs, and other combinations, are one rank's and the reference's", "[.][long]") {
  requireParity({{.cfg = 2},
                 {.ring = 3},
                 {.ulysses = 4},
                 {.ring = 4},
                 {.cfg = 2, .ring = 2},
                 {.ring = 2, .ulysses = 2},
                 {.tp = 4},
                 {.ring = 2, .tp = 2},
                 {.pp = 2},
                 {.ulysses = 2, .pp = 2},
                 {.pp = 2, .tp = 2},
                 {.ring = 8},
                 {.cfg = 2, .ring = 2, .ulysses = 2},
                 {.ring = 2, .ulysses = 4},
                 {.cfg = 2, .ulysses = 2, .tp = 2},
                 {.cfg = 2, .ulysses = 2, .pp = 2},
                 {.ring = 2, .pp = 2, .tp = 2}},
                {.setup = kAll});
}

TEST_CASE("wan parallel: on devices every topology is one rank's and the reference's", "[wan][mesh][cuda]") {
  if (!testing::hasCuda()) return;
  // Ranks that share a device.
  requireParity({{.cfg = 2}, {.ring = 2}, {.tp = 2}, {.pp = 2}, {.ring = 2, .ulysses = 2}},
                {.device = testing::cudaDevice()});
  if (c10::cuda::device_count() < 2) return;
  requireParity({{.cfg = 2}, {.ulysses = 2}, {.ring = 2}, {.tp = 2}, {.pp = 2}},
                {.device = at::Device(at::kCUDA), .backend = mesh::CommunicationBackend::kNccl});
}

// The values of an attention are under way when its queries and keys are normalised, which tensor parallel ranks do by
// a sum of their own.
TEST_CASE("wan parallel: values are scattered before queries and keys are normalised", "[wan][mesh]") {
  const auto transport = GENERATE(mesh::ScatterTransport::kC10d, mesh::ScatterTransport::kDirect);
  Ranks ranks("rank of a table", {.degrees = {.ulysses = 2, .tp = 2}, .ulysses = transport});
  for (size_t rank = 0; rank < ranks.size(); ++rank)
    ranks.next(rank);
  ranks.requireSuccess();
  const bool direct = transport == mesh::ScatterTransport::kDirect;
  const std::vector<std::string> expected =
      direct ? std::vector<std::string>{"scatter_v", "all_reduce", "scatter_q", "scatter_k", "all_to_all"}
             : std::vector<std::string>{"all_to_all", "all_reduce", "all_to_all", "all_to_all", "all_to_all"};
  std::vector<std::string> kinds;
  for (const Operation& operation : ranks.recorder().operations(Rank(0)))
    kinds.push_back(operation.kind);
  const auto found = std::search(kinds.begin(), kinds.end(), expected.begin(), expected.end());
  CHECK(found != kinds.end());
}

// ---- figures ------------------------------------------------------------------------------------------------

TEST_CASE("rank of a table", "[.][child]") {
  ChildRank rank;
  const MeasuredStep step = measureStep(rank, RingVariant::kExchange, true);
  const StepBytes& parts = step.expected;
  rank.send(fmt::format("{:10} {:8} {:8} {:8} {:8} {:8} {:8}", step.bytes, parts.sum(), parts.ulysses, parts.ring,
                        parts.tp, parts.pp, parts.cfg));
}

TEST_CASE("wan parallel: bytes that each rank gives in a step, as a table", "[.][table]") {
  fmt::print("{:28} {:>5} {:>10} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8}\n", "topology", "rank", "measured", "formula",
             "ulysses", "ring", "tp", "pp", "cfg");
  const MeshDegrees topologies[] = {{.cfg = 2},
                                    {.ulysses = 2},
                                    {.ulysses = 4},
                                    {.ring = 2},
                                    {.ring = 4},
                                    {.ring = 2, .ulysses = 2},
                                    {.tp = 2},
                                    {.tp = 4},
                                    {.ulysses = 2, .tp = 2},
                                    {.pp = 2},
                                    {.cfg = 2, .ulysses = 2},
                                    {.cfg = 2, .pp = 2},
                                    {.cfg = 2, .ring = 2, .ulysses = 2}};
  for (const MeshDegrees& degrees : topologies) {
    const std::string name = toString(degrees);
    Ranks ranks("rank of a table", {.degrees = degrees});
    for (size_t rank = 0; rank < ranks.size(); ++rank)
      fmt::print("{:28} {:5} {}\n", name, rank, ranks.next(rank));
    ranks.requireSuccess();
  }
}

}  // namespace
}  // namespace latentd::stages
