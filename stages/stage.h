#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "mesh/device_mesh.h"
#include "runtime/base/dtype.h"
#include "runtime/base/status.h"
#include "runtime/base/token_cut.h"
#include "runtime/base/tree.h"
#include "stages/option_table.h"

namespace latentd::mesh {
class Mesh;
}  // namespace latentd::mesh

namespace latentd::stages {

using TensorTree = Tree<at::Tensor>;

// The effective sampling parameters of a job: every default is already filled in.
struct SamplingParameters {
  std::string prompt;
  std::string negative_prompt;
  uint32_t frames = 0;
  uint32_t width = 0;   // pixels
  uint32_t height = 0;  // pixels
  uint32_t steps = 0;
  double guidance_scale = 1.0;
  uint64_t seed = 0;
  double fps = 0;
  std::optional<double> flow_shift;  // absent: the checkpoint's scheduler decides
};

// What a model accepts, for the check at submission; an unset field is another stage's to say.
struct ModelLimits {
  std::optional<uint32_t> frame_step;     // frames = 1 + k * frame_step
  std::optional<uint32_t> size_multiple;  // of width and height, pixels
  std::optional<uint32_t> height_shards;  // ranks that share the height, which has a multiple for each
  std::optional<uint32_t> frames_max;
  std::optional<uint32_t> prompt_bytes_max;
  SamplingParameters defaults;  // 0 and empty mean unset
};

// One method of a stage and its contract.
struct MethodSpec {
  std::string name;
  std::vector<std::string> inputs;   // keys of the input dictionary it needs
  std::vector<std::string> outputs;  // keys of the dictionary it returns
  bool emits_frames = false;         // writes to RunContext::frames() instead of returning tensors
  // Which of them are videos in token layout (stages/token_video.h), and what each rank of the group holds: outputs
  // always, inputs if the edge brings tokens; they may come as a plain tensor as well.
  std::map<std::string, TokenCut> token_inputs;
  std::map<std::string, TokenCut> token_outputs;
  // Dimensions along which each rank may get a slice of the inputs, or returns one of the outputs, that are plain
  // tensors: where an edge's consumer_shard_dim and producer_shard_dim say so. None: every rank has them whole.
  std::vector<int32_t> sliced_input_dims;
  std::vector<int32_t> sliced_output_dims;
};

// Where RGB frames of the last stage go, in order. Blocks while the reader is behind.
class FrameSink {
 public:
  virtual ~FrameSink() = default;
  // frames: [T, H, W, 3] float32 in [0, 1], on the CPU, contiguous. Fails once the job is cancelled or its reader died.
  virtual Status write(const at::Tensor& frames) = 0;
};

// What a running method may ask of its worker. Owner: the worker, for the length of run(). Thread: the caller of run().
class RunContext {
 public:
  // Steps that are begun and not yet finished: one that the device computes, and one that it finds when it is done.
  static constexpr uint32_t kStepsInFlightMax = 2;

  virtual ~RunContext() = default;
  // To be called before step `step` (0-based) of `steps`: every rank of the group gets the same answer for the same
  // step. CANCELLED: return that status at once; nothing may be left inside a collective.
  virtual Status beginStep(uint32_t step, uint32_t steps) = 0;
  // The last step is within a few milliseconds of its end, as far as one can tell: whoever waits for the results gets
  // ready. A hint; any number of times.
  virtual void nearEnd() {}
  // Step `step` is complete (not merely submitted). Steps are begun and finished in order.
  virtual void finishStep(uint32_t step, uint32_t steps) = 0;
  // Null for methods that emit no frames.
  virtual FrameSink* frames() = 0;
};

// What load() gets. Owner: the caller; copies are fine.
struct LoadContext {
  std::string model_dir;          // a diffusers directory
  std::string device = "cpu";     // "cpu", "cuda:0"
  DType dtype = DType::kFloat32;  // of weights and activations; islands stay float32 as the reference has it
  std::map<std::string, std::string> options;  // the group's `options:` in the topology
  mesh::MeshDegrees degrees;                   // the group's `parallel:`; those of `mesh` where there is one
  mesh::Mesh* mesh = nullptr;                  // the group's ranks; null: alone, or check_only. Outlives the stage
  // Everything is checked that configurations and the headers of weight files tell, and no weight is read. Afterwards
  // methods(), limits() and weightBytes() hold; warmUp() and run() do not work.
  bool check_only = false;
  // fraction 0..1 and what is being loaded.
  std::function<void(double fraction, const std::string& detail)> progress = [](double, const std::string&) {};
};

// A piece of a pipeline with named methods. Owner: one worker. Thread: the worker's executor thread only.
// States: constructed -> load() succeeded -> warmUp() -> run() any number of times. Failure: a failed load() or run()
// leaves the object destructible; a failed run() leaves it ready for the next job. May throw c10::Error: the executor
// converts it.
class Stage {
 public:
  virtual ~Stage() = default;
  // Reads and checks the checkpoint; every problem is named with its file. Refuses a checkpoint it cannot serve. A
  // status may carry the field of the group that it is about (runtime/base/status_field.h).
  virtual Status load(const LoadContext& context) = 0;
  // Runs the method once on the smallest valid input, so that the first job pays no first-use cost.
  virtual Status warmUp() = 0;
  virtual std::vector<MethodSpec> methods() const = 0;
  virtual std::vector<OptionSpec> options() const { return {}; }
  virtual ModelLimits limits() const = 0;
  virtual uint64_t weightBytes() const = 0;
  // inputs: one dictionary, the union of what the edges brought. Returns a dictionary with the method's outputs.
  virtual StatusOr<TensorTree> run(const std::string& method, const SamplingParameters& parameters,
                                   const TensorTree& inputs, RunContext& context) = 0;
  // Forgets what it keeps for one session; a job-only stage keeps nothing.
  virtual void reset(const std::string& session) { (void)session; }
};

using StageFactory = std::function<std::unique_ptr<Stage>()>;

}  // namespace latentd::stages
