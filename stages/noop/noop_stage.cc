#include "stages/noop/noop_stage.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <signal.h>

#include <algorithm>
#include <ctime>
#include <utility>

#include "mesh/collectives.h"
#include "mesh/mesh.h"
#include "mesh/scalar_type.h"
#include "stages/device/step_pacer.h"
#include "stages/device/transfer.h"
#include "stages/stage_checks.h"

namespace latentd::stages {
namespace {

using Milliseconds = std::chrono::milliseconds;

Milliseconds threadTime() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return std::chrono::duration_cast<Milliseconds>(std::chrono::seconds(now.tv_sec) +
                                                  std::chrono::nanoseconds(now.tv_nsec));
}

// Arithmetic for so much processor time: unlike a sleep it competes for cores as a model would.
void burn(Milliseconds time) {
  if (time <= Milliseconds(0)) return;
  constexpr int kRounds = 20'000;  // some tens of microseconds between two looks at the clock
  const Milliseconds end = threadTime() + time;
  volatile float result = 1.0F;
  while (threadTime() < end) {
    float value = result;
    for (int i = 0; i < kRounds; ++i)
      value = value * 0.999F + 0.5F;
    result = value;
  }
}

at::Tensor filled(at::IntArrayRef shape, int64_t value, DType dtype, at::Device device) {
  return at::full(shape, value, at::TensorOptions().dtype(toScalarType(dtype)).device(device));
}

// Whether every kStride-th element and the last are the value: enough to catch a slice that was not copied or is
// another job's. One boolean on the leaf's device.
at::Tensor holdsOnly(const at::Tensor& leaf, int64_t value) {
  constexpr int64_t kStride = 1021;  // prime, so that no row length hides behind it
  const at::Tensor flat = leaf.reshape({-1});
  const int64_t count = flat.numel();
  const at::Tensor sample = flat.slice(0, 0, count, std::max<int64_t>(kStride, count / 64));
  return sample.eq(value).all().logical_and(flat.slice(0, std::max<int64_t>(count - 1, 0)).eq(value).all());
}

}  // namespace

int64_t noopValue(DType dtype, uint64_t seed, uint64_t leaf) {
  return static_cast<int64_t>((seed % 127 + leaf) % (dtype == DType::kBool ? 2 : 127));
}

Status NoopStage::load(const LoadContext& context) {
  LATENTD_ASSIGN_OR_RETURN(options_, parseNoopOptions(context.options, context.dtype));
  LATENTD_ASSIGN_OR_RETURN(device_, computeDevice(context));
  mesh_ = context.mesh;
  if (context.check_only) return absl::OkStatus();
  constexpr int kParts = 10;
  for (int part = 0; part < kParts; ++part) {
    context.progress(static_cast<double>(part) / kParts, "part " + std::to_string(part + 1) + " of 10");
    if (chosen()) burn(options_.load_time / kParts);
  }
  if (options_.fail_load && chosen()) return absl::FailedPreconditionError("stage noop: option fail_load is true");
  weights_ = filled({static_cast<int64_t>(options_.weight_bytes)}, 1, DType::kUInt8, device_);
  return absl::OkStatus();
}

Status NoopStage::warmUp() {
  burn(options_.warm_up_time);
  return verdict(sumUp());
}

bool NoopStage::chosen() const {
  return options_.only_rank < 0 || options_.only_rank == (mesh_ == nullptr ? 0 : mesh_->rank().value);
}

std::vector<NoopStage::LeafCheck> NoopStage::sumUp() const {
  if (mesh_ == nullptr || options_.sum_bytes == 0) return {};
  const int64_t ranks = mesh_->shape().worldSize();
  const auto elements = std::max<int64_t>(static_cast<int64_t>(options_.sum_bytes / sizeof(float)), 1);
  const at::Tensor sum = filled({elements}, mesh_->rank().value + 1, DType::kFloat32, device_);
  mesh::allReduceSum_(mesh_->world(), {sum});
  const int64_t expected = ranks * (ranks + 1) / 2;
  return {{toPinnedHost(holdsOnly(sum, expected)),
           "the sum over " + std::to_string(ranks) + " ranks is not all " + std::to_string(expected)}};
}

std::vector<MethodSpec> NoopStage::methods() const {
  // A part of a payload is as good as all of it. Inputs may be another stage's tensors: as many as an edge can name.
  const std::vector<int32_t> any = {0, 1, 2, 3, 4, 5, 6, 7};
  return {
      {.name = "source", .outputs = {options_.output_key}, .sliced_output_dims = {0}},
      {.name = "relay",
       .inputs = options_.input_keys,
       .outputs = {options_.output_key},
       .sliced_input_dims = any,
       .sliced_output_dims = any},
      {.name = "sink", .inputs = options_.input_keys, .emits_frames = true, .sliced_input_dims = any},
  };
}

Status NoopStage::runSteps(const SamplingParameters& parameters, RunContext& context,
                           const std::vector<LeafCheck>& checks, const std::function<void()>& make_output) const {
  const bool faulty = chosen() && parameters.prompt.find(options_.only_prompt) != std::string::npos;
  const uint32_t steps = std::max(options_.steps != 0 ? options_.steps : parameters.steps, 1u);
  at::Tensor ballast;
  StepPacer pacer(context, device_, steps);
  for (uint32_t step = 0; step < steps; ++step) {
    LATENTD_RETURN_IF_ERROR(pacer.begin(step));
    if (faulty && step == 0 && options_.allocate_bytes > 0) {
      ballast = filled({static_cast<int64_t>(options_.allocate_bytes)}, 1, DType::kUInt8, device_);
    }
    burn(options_.step_time);
    if (faulty && step == options_.crash_at_step) ::raise(SIGSEGV);
    if (faulty && step == options_.fail_at_step) {
      return absl::InternalError("stage noop: option fail_at_step is " + std::to_string(options_.fail_at_step));
    }
    if (make_output && step + 1 == steps) make_output();
    LATENTD_RETURN_IF_ERROR(pacer.submitted([&checks, step, sums = sumUp()] {
      if (step == 0) LATENTD_RETURN_IF_ERROR(verdict(checks));
      return verdict(sums);
    }));
  }
  return pacer.finish();
}

Status NoopStage::verdict(const std::vector<LeafCheck>& checks) {
  for (const LeafCheck& check : checks) {
    if (!check.passed.item<bool>()) return absl::DataLossError(check.what);
  }
  return absl::OkStatus();
}

TensorTree NoopStage::makePayload(const SamplingParameters& parameters) const {
  const auto element_bytes = static_cast<int64_t>(byteSize(options_.dtype));
  const auto bytes = static_cast<int64_t>(options_.bytes + options_.bytes_per_frame * parameters.frames);
  const int64_t elements = bytes / options_.leaves / element_bytes;
  TensorTree::List leaves;
  for (uint32_t leaf = 0; leaf < options_.leaves; ++leaf) {
    const int64_t value = noopValue(options_.dtype, parameters.seed, leaf);
    leaves.items.push_back(TensorTree::Value(filled({elements}, value, options_.dtype, device_)));
  }
  TensorTree::Dict payload;
  payload.entries.emplace_back("step_count", TensorTree(int64_t{options_.steps}));
  payload.entries.emplace_back("label", TensorTree(std::string("noop")));
  payload.entries.emplace_back("leaves", TensorTree(std::move(leaves)));
  return TensorTree(std::move(payload));
}

StatusOr<NoopStage::Input> NoopStage::takeInput(const SamplingParameters& parameters, const TensorTree& inputs) const {
  Input taken;
  for (const std::string& key : options_.input_keys) {
    const TensorTree* input = inputs.find(key);
    if (input == nullptr) return absl::InvalidArgumentError("stage noop: input \"" + key + "\" is missing");
    if (key == options_.input_keys.front()) taken.payload = *input;
    if (!options_.check) continue;
    uint64_t leaf_index = 0;
    input->forEachLeaf([&](const at::Tensor& leaf) {
      const int64_t expected = noopValue(toDType(leaf.scalar_type()), parameters.seed, leaf_index);
      taken.checks.push_back({toPinnedHost(holdsOnly(leaf, expected)),
                              "input \"" + key + "\", leaf " + std::to_string(leaf_index) + " of seed " +
                                  std::to_string(parameters.seed) + " is not all " + std::to_string(expected)});
      ++leaf_index;
    });
  }
  return taken;
}

Status NoopStage::emitFrames(const SamplingParameters& parameters, RunContext& context) const {
  if (context.frames() == nullptr) return absl::FailedPreconditionError("stage noop: method sink has no frame ring");
  const uint32_t frames = options_.frames != 0 ? options_.frames : parameters.frames;
  at::Tensor frame = at::empty({1, parameters.height, parameters.width, 3}, at::TensorOptions().dtype(at::kFloat));
  for (uint32_t index = 0; index < frames; ++index) {
    frame.fill_(static_cast<double>((parameters.seed + index) % 256) / 255.0);
    LATENTD_RETURN_IF_ERROR(context.frames()->write(frame));
  }
  return absl::OkStatus();
}

StatusOr<TensorTree> NoopStage::run(const std::string& method, const SamplingParameters& parameters,
                                    const TensorTree& inputs, RunContext& context) {
  TensorTree::Dict outputs;
  if (method == "source") {
    TensorTree payload;
    LATENTD_RETURN_IF_ERROR(runSteps(parameters, context, {}, [&] { payload = makePayload(parameters); }));
    outputs.entries.emplace_back(options_.output_key, std::move(payload));
  } else if (method == "relay") {
    LATENTD_ASSIGN_OR_RETURN(Input input, takeInput(parameters, inputs));
    LATENTD_RETURN_IF_ERROR(runSteps(parameters, context, input.checks));
    outputs.entries.emplace_back(options_.output_key, std::move(input.payload));
  } else if (method == "sink") {
    LATENTD_ASSIGN_OR_RETURN(const Input input, takeInput(parameters, inputs));
    LATENTD_RETURN_IF_ERROR(runSteps(parameters, context, input.checks));
    LATENTD_RETURN_IF_ERROR(emitFrames(parameters, context));
  } else {
    return absl::NotFoundError("stage noop: method \"" + method + "\" is none of source, relay, sink");
  }
  return TensorTree(std::move(outputs));
}

}  // namespace latentd::stages
