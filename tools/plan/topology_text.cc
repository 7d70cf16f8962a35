#include "tools/plan/topology_text.h"

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <vector>

#include "tools/plan/amount_text.h"

namespace latentd::plan {
namespace {

// What Wan is made for; nothing that is predicted depends on it.
constexpr int kFps = 16;

struct Group {
  const char* name;
  const char* stage;
  uint32_t first_gpu = 0;
  uint32_t gpus = 1;
  mesh::MeshDegrees degrees;
  std::vector<std::pair<const char*, const char*>> options;
};

void emit(YAML::Emitter& yaml, const Group& group, DType dtype) {
  yaml << YAML::Flow << YAML::BeginMap;
  yaml << YAML::Key << "name" << YAML::Value << group.name << YAML::Key << "stage" << YAML::Value << group.stage;
  yaml << YAML::Key << "devices" << YAML::Value << YAML::Flow << YAML::BeginSeq;
  for (uint32_t gpu = 0; gpu < group.gpus; ++gpu)
    yaml << YAML::DoubleQuoted << fmt::format("cuda:{}", group.first_gpu + gpu);
  yaml << YAML::EndSeq;
  if (group.gpus > 1) {
    yaml << YAML::Key << "parallel" << YAML::Value << YAML::Flow << YAML::BeginMap;
    for (const mesh::MeshDim dim : mesh::kMeshDims) {
      const uint32_t degree = group.degrees.of(dim);
      if (degree > 1) yaml << YAML::Key << std::string(mesh::toString(dim)) << YAML::Value << degree;
    }
    yaml << YAML::EndMap;
  }
  yaml << YAML::Key << "dtype" << YAML::Value << std::string(toString(dtype));
  if (!group.options.empty()) {
    yaml << YAML::Key << "options" << YAML::Value << YAML::Flow << YAML::BeginMap;
    for (const auto& [name, value] : group.options)
      yaml << YAML::Key << name << YAML::Value << value;
    yaml << YAML::EndMap;
  }
  yaml << YAML::EndMap;
}

std::vector<Group> groupsOf(const Candidate& candidate) {
  Group denoise{
      .name = "denoise", .stage = "wan.denoiser", .gpus = candidate.split.gpus(), .degrees = candidate.split.degrees};
  if (!candidate.split.batched) denoise.options.emplace_back("guidance_batching", "separate");
  if (candidate.split.ring_gathers) denoise.options.emplace_back("ring_attention", "all_gather");
  return {{.name = "text", .stage = "wan.text_encoder", .first_gpu = candidate.text_gpu},
          std::move(denoise),
          {.name = "decode",
           .stage = "wan.vae_decoder",
           .first_gpu = candidate.gpus - candidate.decode_gpus,
           .gpus = candidate.decode_gpus,
           .degrees = {.spatial = candidate.decode_gpus}}};
}

void emitEdge(YAML::Emitter& yaml, const char* from, const char* to) {
  yaml << YAML::Flow << YAML::BeginMap << YAML::Key << "from" << YAML::Value << from << YAML::Key << "to" << YAML::Value
       << to << YAML::EndMap;
}

void emitJobs(YAML::Emitter& yaml, const Job& job) {
  yaml << YAML::Key << "defaults" << YAML::Value << YAML::Flow << YAML::BeginMap;
  yaml << YAML::Key << "frames" << YAML::Value << job.frames;
  yaml << YAML::Key << "size" << YAML::Value << fmt::format("{}x{}", job.width, job.height);
  yaml << YAML::Key << "steps" << YAML::Value << job.steps << YAML::Key << "guidance" << YAML::Value << job.guidance;
  yaml << YAML::Key << "fps" << YAML::Value << kFps;
  yaml << YAML::EndMap;
  yaml << YAML::Key << "limits" << YAML::Value << YAML::Flow << YAML::BeginMap;
  yaml << YAML::Key << "frames_max" << YAML::Value << job.frames;
  yaml << YAML::Key << "pixels_max" << YAML::Value << uint64_t{job.width} * job.height;
  yaml << YAML::Key << "steps_max" << YAML::Value << job.steps;
  // With guidance a job would take the memory of two.
  if (!job.guided()) yaml << YAML::Key << "guidance_max" << YAML::Value << 1;
  yaml << YAML::EndMap;
}

}  // namespace

std::string topologyYaml(const Request& request, const Candidate& candidate) {
  YAML::Emitter yaml;
  yaml << YAML::BeginMap;
  yaml << YAML::Key << "model" << YAML::Value << YAML::DoubleQuoted << request.model.dir;
  yaml << YAML::Key << "groups" << YAML::Value << YAML::Block << YAML::BeginSeq;
  for (const Group& group : groupsOf(candidate))
    emit(yaml, group, request.job.dtype);
  yaml << YAML::EndSeq;
  yaml << YAML::Key << "edges" << YAML::Value << YAML::Block << YAML::BeginSeq;
  emitEdge(yaml, "text.encode", "denoise.denoise");
  emitEdge(yaml, "denoise.denoise", "decode.decode");
  yaml << YAML::EndSeq;
  emitJobs(yaml, request.job);
  yaml << YAML::EndMap;
  return fmt::format(
      "# Made by latentd plan for {} x {}: {}.\n# Predicted: a step {}, a job {}, {} jobs an hour; {} on the GPU "
      "that holds most.\n# The limits are those of what was planned: for larger jobs, plan again.\n{}\n",
      request.gpus, request.hardware.gpu.name, toString(candidate.split), secondsText(candidate.step.total),
      secondsText(candidate.job_seconds), rateText(candidate.jobs_per_hour), gibText(candidate.busiest_bytes),
      yaml.c_str());
}

}  // namespace latentd::plan
