#pragma once

#include <cstdint>
#include <list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "stages/stage.h"
#include "stages/text/text_encoder_options.h"
#include "stages/text/tokenizer.h"
#include "stages/text/umt5_encoder.h"

namespace latentd::stages {

// "wan.text_encoder": prompts to what the denoiser attends to, for every checkpoint with a UMT5 text encoder.
//   encode  nothing -> {prompt_embeds, negative_prompt_embeds}, each [1, 512, d_model] in the group's dtype; rows
//           behind the text's "</s>" are exact zeros. Without guidance (guidance_scale at most 1) the second is null.
// Texts are encoded one by one, so that a result does not depend on what is encoded or cached beside it.
// Owner: one worker. Thread: its executor. States and failure: as Stage. A prompt that is too long, not UTF-8 or has
// a NUL is INVALID_ARGUMENT; one of more than 512 tokens is cut, as the reference does.
class TextEncoderStage final : public Stage {
 public:
  Status load(const LoadContext& context) override;
  Status warmUp() override;
  std::vector<MethodSpec> methods() const override;
  std::vector<OptionSpec> options() const override { return describeOptions(textEncoderOptionTable()); }
  ModelLimits limits() const override;
  uint64_t weightBytes() const override;
  StatusOr<TensorTree> run(const std::string& method, const SamplingParameters& parameters, const TensorTree& inputs,
                           RunContext& context) override;

 private:
  StatusOr<at::Tensor> embed(std::string_view text) const;
  StatusOr<at::Tensor> embedNegative(const std::string& text);

  TextEncoderOptions options_;
  std::optional<Tokenizer> tokenizer_;
  std::optional<Umt5Encoder> encoder_;
  // Latest used first, at most options_.negative_cache. Consumers only read them.
  std::list<std::pair<std::string, at::Tensor>> negatives_;
};

}  // namespace latentd::stages
