#pragma once

#include <optional>
#include <string>

#include <nlohmann/json.hpp>

#include "runtime/base/dtype.h"
#include "stages/stage.h"
#include "tests/stages/golden.h"
#include "tests/stages/temp_checkpoint.h"

namespace latentd::stages::testing {

// prompt_embeds and negative_prompt_embeds, as the worker of the text group makes them.
TensorTree encodeText(const Oracle& oracle, const std::string& model, const nlohmann::json& meta,
                      const nlohmann::json& prompt, DType dtype, const std::string& device = "cpu");

// A tensor of a dictionary, which has it.
at::Tensor tensorAt(const TensorTree& tree, const std::string& key);

// One run of the reference's pipeline, as a job for the denoiser stage. A failure to make it fails the test.
class GoldenPipeline {
 public:
  // name: of the golden file, such as "wan21-t2v/pipeline_euler4".
  GoldenPipeline(const Oracle& oracle, const std::string& model, const std::string& name);

  const Golden& golden() const { return golden_; }
  const nlohmann::json& meta() const { return meta_; }
  bool isBFloat16() const { return meta_["transformer_dtype"] == "torch.bfloat16"; }
  at::Tensor expected() const { return golden_.tensor("latents_final"); }

  // A copy of the checkpoint with the run's own scheduler.
  std::string modelDir() const { return files_.path() + "/" + model_; }
  SamplingParameters parameters() const;
  // By our text encoder.
  TensorTree inputs(DType dtype, const std::string& device = "cpu") const;

 private:
  Oracle oracle_;
  std::string model_;
  Golden golden_;
  nlohmann::json meta_;
  TempCheckpoint files_;
};

}  // namespace latentd::stages::testing
