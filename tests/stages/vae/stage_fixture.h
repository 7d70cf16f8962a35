#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <fmt/format.h>

#include "stages/stage.h"
#include "tests/stages/golden.h"
#include "tests/support/catch.h"

// What tests of the VAE's stages share.
namespace latentd::stages::testing {

// Records what a run does, in order, and stops it where a test says. Owner: the test. Thread: the caller of run().
class RecordingContext : public RunContext, public FrameSink {
 public:
  Status beginStep(uint32_t step, uint32_t steps) override {
    events.push_back(fmt::format("begin {}/{}", step, steps));
    return step == cancel_at ? absl::CancelledError("the test") : absl::OkStatus();
  }
  void finishStep(uint32_t step, uint32_t steps) override { events.push_back(fmt::format("end {}/{}", step, steps)); }
  FrameSink* frames() override { return has_sink ? this : nullptr; }
  Status write(const at::Tensor& frames) override {
    events.push_back(fmt::format("write {}", frames.size(0)));
    CHECK(frames.is_contiguous());
    CHECK(frames.scalar_type() == at::kFloat);
    written.push_back(frames.clone());
    return written.size() == fail_at ? absl::UnavailableError("the reader died") : absl::OkStatus();
  }

  uint32_t cancel_at = UINT32_MAX;
  size_t fail_at = SIZE_MAX;
  bool has_sink = true;
  std::vector<std::string> events;
  std::vector<at::Tensor> written;
};

inline LoadContext context(const std::string& directory, DType dtype = DType::kFloat32) {
  LoadContext load;
  load.model_dir = directory;
  load.dtype = dtype;
  return load;
}

template <class StageType>
void loadInto(StageType& stage, const std::string& directory, DType dtype = DType::kFloat32) {
  REQUIRE(problem(stage.load(context(directory, dtype))) == "");
  REQUIRE(problem(stage.warmUp()) == "");
}

inline TensorTree inputs(const std::string& key, const at::Tensor& tensor) {
  TensorTree::Dict dict;
  dict.entries.emplace_back(key, TensorTree(TensorTree::Value(tensor)));
  return TensorTree(TensorTree::Value(std::move(dict)));
}

inline SamplingParameters job(int64_t frames, int64_t height, int64_t width) {
  SamplingParameters parameters;
  parameters.frames = static_cast<uint32_t>(frames);
  parameters.height = static_cast<uint32_t>(height);
  parameters.width = static_cast<uint32_t>(width);
  return parameters;
}

// Of latents of Wan 2.1.
inline SamplingParameters jobOf(const at::Tensor& latents) {
  return job(1 + 4 * (latents.size(2) - 1), 8 * latents.size(3), 8 * latents.size(4));
}

}  // namespace latentd::stages::testing
