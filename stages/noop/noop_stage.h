#pragma once

#include <functional>
#include <string>
#include <vector>

#include "stages/noop/noop_options.h"
#include "stages/stage.h"

namespace latentd::stages {

// "noop": moves tensors and frames of a chosen size without a model, for dry runs of a topology, for benchmarks of the
// control and data plane, and for rehearsing faults. Every method takes `steps` steps of `step_ms` each.
//   source  nothing -> {output_key: {step_count, label, leaves: [tensors]}}; leaf i of seed s is filled with
//   noopValue(s, i) relay   {input_keys...} -> the same under output_key, after checking that the leaves hold what
//   source wrote sink    {input_keys...} -> frames of the job's size (grey, one level a frame), after the same check
// Owner: one worker. Thread: its executor. States and failure: as Stage.
class NoopStage final : public Stage {
 public:
  Status load(const LoadContext& context) override;
  Status warmUp() override;
  std::vector<MethodSpec> methods() const override;
  std::vector<OptionSpec> options() const override { return describeOptions(noopOptionTable()); }
  ModelLimits limits() const override { return {}; }
  uint64_t weightBytes() const override { return options_.weight_bytes; }
  StatusOr<TensorTree> run(const std::string& method, const SamplingParameters& parameters, const TensorTree& inputs,
                           RunContext& context) override;

 private:
  // That a leaf holds what the source wrote; known once what was submitted before is complete.
  struct LeafCheck {
    at::Tensor passed;  // one boolean, on the host
    std::string what;   // of the failure
  };
  struct Input {
    TensorTree payload;
    std::vector<LeafCheck> checks;
  };

  // The checks are judged when the first step is complete; `make_output` is a part of the last one, so that what it
  // makes is there when the method ends.
  Status runSteps(const SamplingParameters& parameters, RunContext& context, const std::vector<LeafCheck>& checks,
                  const std::function<void()>& make_output = nullptr) const;
  // Faults hit this rank.
  bool chosen() const;
  // What every rank of the group adds up, with the check of the sum; nothing where it is alone or sums nothing.
  std::vector<LeafCheck> sumUp() const;
  static Status verdict(const std::vector<LeafCheck>& checks);
  StatusOr<Input> takeInput(const SamplingParameters& parameters, const TensorTree& inputs) const;
  TensorTree makePayload(const SamplingParameters& parameters) const;
  Status emitFrames(const SamplingParameters& parameters, RunContext& context) const;

  NoopOptions options_;
  at::Device device_ = at::kCPU;
  mesh::Mesh* mesh_ = nullptr;  // null: alone
  at::Tensor weights_;
};

// What every element of a source's leaf is: small enough to be exact in every dtype.
int64_t noopValue(DType dtype, uint64_t seed, uint64_t leaf);

}  // namespace latentd::stages
