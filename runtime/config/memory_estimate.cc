#include "runtime/config/memory_estimate.h"

#include <filesystem>
#include <system_error>

namespace latentd::config {
namespace {

namespace fs = std::filesystem;

struct StageFolders {
  std::string_view stage;  // last part of the stage's name
  std::vector<std::string> folders;
};

// Where a diffusers directory keeps what a stage loads.
std::vector<std::string> foldersOf(std::string_view stage) {
  const StageFolders known[] = {{"text_encoder", {"text_encoder"}},
                                {"denoiser", {"transformer"}},
                                {"vae_decoder", {"vae"}},
                                {"vae_encoder", {"vae"}}};
  const std::string_view last = stage.substr(stage.rfind('.') + 1);
  for (const StageFolders& entry : known) {
    if (entry.stage == last) return entry.folders;
  }
  return {};
}

uint64_t safetensorsBytes(const fs::path& folder) {
  std::error_code error;
  uint64_t bytes = 0;
  for (fs::directory_iterator entry(folder, error); !error && entry != fs::directory_iterator();
       entry.increment(error)) {
    std::error_code unreadable;
    if (entry->path().extension() != ".safetensors") continue;
    const uintmax_t size = entry->file_size(unreadable);
    if (!unreadable) bytes += size;
  }
  return bytes;
}

uint64_t allSafetensorsBytes(const fs::path& model_dir) {
  std::error_code error;
  uint64_t bytes = safetensorsBytes(model_dir);
  for (fs::directory_iterator entry(model_dir, error); !error && entry != fs::directory_iterator();
       entry.increment(error)) {
    std::error_code unreadable;
    if (entry->is_directory(unreadable)) bytes += safetensorsBytes(entry->path());
  }
  return bytes;
}

}  // namespace

MemoryEstimate estimateMemory(const GroupSpec& group) {
  MemoryEstimate estimate;
  if (group.model_dir.empty()) return estimate;
  for (std::string& folder : foldersOf(group.stage)) {
    estimate.weight_bytes += safetensorsBytes(fs::path(group.model_dir) / folder);
    estimate.folders.push_back(std::move(folder));
  }
  if (estimate.folders.empty()) estimate.weight_bytes = allSafetensorsBytes(group.model_dir);
  return estimate;
}

}  // namespace latentd::config
