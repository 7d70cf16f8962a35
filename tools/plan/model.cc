#include "tools/plan/model.h"

#include <fmt/format.h>

#include <filesystem>
#include <system_error>
#include <utility>

#include "stages/weights/model_config.h"
#include "stages/weights/safetensors.h"

namespace latentd::plan {
namespace {

namespace fs = std::filesystem;

StatusOr<fs::path> modelFolder(const std::string& dir) {
  std::error_code error;
  const fs::path path = fs::absolute(dir, error).lexically_normal();
  if (dir.empty() || !fs::is_directory(path, error)) {
    return absl::InvalidArgumentError(
        fmt::format("--model: '{}' is not a folder; give a diffusers directory with model_index.json in it", dir));
  }
  if (!fs::exists(path / "model_index.json", error)) {
    return absl::InvalidArgumentError(
        fmt::format("--model: '{}' has no model_index.json; give the diffusers directory that has it", dir));
  }
  return path.has_filename() ? path : path.parent_path();
}

// Of all weights in a folder; absent if there are none.
StatusOr<std::optional<uint64_t>> parametersOnDisk(const fs::path& folder) {
  std::optional<uint64_t> count;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error); !error && entry != fs::directory_iterator();
       entry.increment(error)) {
    if (entry->path().extension() != ".safetensors") continue;
    LATENTD_ASSIGN_OR_RETURN(const auto file, stages::SafetensorsFile::open(entry->path().string()));
    count = count.value_or(0);
    for (const auto& [name, tensor] : file->entries())
      *count += tensor.bytes / byteSize(tensor.dtype);
  }
  return count;
}

constexpr uint64_t linear(uint64_t in, uint64_t out) { return in * out + out; }

}  // namespace

StatusOr<Model> Model::load(const std::string& dir) {
  LATENTD_ASSIGN_OR_RETURN(const fs::path folder, modelFolder(dir));
  LATENTD_ASSIGN_OR_RETURN(stages::wan::ServedModel served, stages::wan::ServedModel::load(folder.string()));
  LATENTD_ASSIGN_OR_RETURN(stages::ModelConfig index,
                           stages::ModelConfig::read((folder / "model_index.json").string()));
  LATENTD_RETURN_IF_ERROR(checkComponentClass(index, "text_encoder", "UMT5EncoderModel"));
  Model model;
  static_cast<stages::wan::ServedModel&>(model) = std::move(served);
  model.dir = folder.string();
  LATENTD_ASSIGN_OR_RETURN(model.text, stages::readUmt5Config((folder / "text_encoder" / "config.json").string()));
  LATENTD_ASSIGN_OR_RETURN(model.parameters_on_disk, parametersOnDisk(folder / "transformer"));
  return model;
}

Status checkJob(const Model& model, const Job& job) {
  return model.checkVideo(job.frames, job.height, job.width,
                          {.frames = "--frames", .height = "--size (height)", .width = "--size (width)"});
}

stages::wan::LatentShape latentShape(const Model& model, const Job& job) {
  return model.latentShape(job.frames, job.height, job.width);
}

int64_t tokens(const Model& model, const Job& job) {
  const stages::wan::LatentShape latents = latentShape(model, job);
  const auto& patch = model.transformer.patch_size;
  return latents.frames / patch[0] * (latents.height / patch[1]) * (latents.width / patch[2]);
}

TransformerParameters transformerParameters(const stages::wan::TransformerConfig& config) {
  const auto dim = static_cast<uint64_t>(config.dim());
  const auto ffn = static_cast<uint64_t>(config.ffn_dim);
  const auto volume = static_cast<uint64_t>(config.patchVolume());
  constexpr uint64_t kModulationRows = 6;
  TransformerParameters count;
  // Query, key, value and output of the attention to itself and of that to the text, and the feed-forward part.
  count.layer_products = 8 * dim * dim + 2 * dim * ffn;
  // Biases, and the norms of both queries and keys.
  count.layer_rest = 8 * dim + ffn + dim + 4 * dim;
  count.layer_float32 = kModulationRows * dim + (config.cross_attn_norm ? 2 * dim : 0);
  count.outside = linear(static_cast<uint64_t>(config.in_channels) * volume, dim) + linear(dim, kModulationRows * dim) +
                  linear(static_cast<uint64_t>(config.text_dim), dim) + linear(dim, dim) +
                  linear(dim, static_cast<uint64_t>(config.out_channels) * volume);
  count.outside_float32 = linear(static_cast<uint64_t>(config.freq_dim), dim) + linear(dim, dim) + 2 * dim;
  return count;
}

uint64_t textParameters(const stages::Umt5Config& config) {
  const auto dim = static_cast<uint64_t>(config.d_model);
  const auto inner = static_cast<uint64_t>(config.heads * config.d_kv);
  const uint64_t layer = 4 * dim * inner + static_cast<uint64_t>(config.position_buckets * config.heads) +
                         3 * dim * static_cast<uint64_t>(config.d_ff) + 2 * dim;
  return static_cast<uint64_t>(config.vocab_size) * dim + static_cast<uint64_t>(config.layers) * layer + dim;
}

}  // namespace latentd::plan
