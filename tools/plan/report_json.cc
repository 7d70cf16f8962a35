#include <nlohmann/json.hpp>

#include "tools/plan/report.h"

namespace latentd::plan {
namespace {

using nlohmann::json;

json degreesJson(const mesh::MeshDegrees& degrees) {
  json object = json::object();
  for (const mesh::MeshDim dim : mesh::kMeshDims)
    object[std::string(mesh::toString(dim))] = degrees.of(dim);
  return object;
}

json memoryJson(const RankMemory& memory) {
  return {{"total", memory.total()},   {"weights", memory.weights}, {"activations", memory.activations},
          {"buffers", memory.buffers}, {"pools", memory.pools},     {"process", memory.process}};
}

json stepJson(const StepTime& step) {
  return {{"total", step.total},   {"matmul", step.matmul},     {"attention", step.attention},
          {"memory", step.memory}, {"exchange", step.exchange}, {"bubble", step.bubble},
          {"host", step.host}};
}

json candidateJson(const Request& request, const Candidate& candidate) {
  const Traffic& traffic = candidate.traffic;
  const HeadTransport heads = headTransport(candidate.split.degrees, request.hardware);
  const bool scatters = !heads.reason.empty();
  return {{"parallel", degreesJson(candidate.split.degrees)},
          {"ring_attention", candidate.split.ring_gathers ? "all_gather" : "exchange"},
          {"guidance_batching", candidate.split.batched ? "batched" : "separate"},
          {"ulysses_transport", scatters ? json(heads.name()) : json()},
          {"ulysses_transport_reason", scatters ? json(heads.reason) : json()},
          {"gpus", candidate.usedGpus()},
          {"denoiser_gpus", candidate.split.gpus()},
          {"decode_gpus", candidate.decode_gpus},
          {"step_seconds", stepJson(candidate.step)},
          {"sent_bytes_a_step",
           {{"total", traffic.total()},
            {"ulysses", traffic.ulysses},
            {"ring", traffic.ring},
            {"tp", traffic.tp},
            {"cfg", traffic.cfg},
            {"pp", traffic.pp}}},
          {"decode_sent_bytes", candidate.decode_sent_bytes},
          {"memory_bytes",
           {{"denoiser", memoryJson(candidate.denoise)},
            {"text_encoder", memoryJson(candidate.text)},
            {"decoder", memoryJson(candidate.decode)},
            {"busiest_gpu", candidate.busiest_bytes}}},
          {"text_seconds", candidate.text_seconds},
          {"decode_seconds", candidate.decode_seconds},
          {"job_seconds", candidate.job_seconds},
          {"jobs_per_hour", candidate.jobs_per_hour},
          {"efficiency", candidate.efficiency},
          {"unserved", candidate.unserved}};
}

json requestJson(const Request& request) {
  const auto& [model, job, hardware, gpus, goal] = request;
  return {{"model", model.dir},
          {"parameters", transformerParameters(model.transformer).total(model.transformer.layers)},
          {"tokens", tokens(model, job)},
          {"width", job.width},
          {"height", job.height},
          {"frames", job.frames},
          {"steps", job.steps},
          {"guidance", job.guidance},
          {"dtype", toString(job.dtype)},
          {"gpu", hardware.gpu.name},
          {"gpus", gpus},
          {"gpus_per_host", hardware.gpus_per_host},
          {"link", toString(hardware.link)},
          {"memory_bytes", hardware.memory_bytes},
          {"goal", goal == Goal::kLatency ? "latency" : "throughput"}};
}

}  // namespace

std::string reportJson(const Request& request, const Plan& plan) {
  json report = {{"request", requestJson(request)},
                 {"one_gpu_step_seconds", stepJson(plan.one_gpu)},
                 {"proposal", nullptr},
                 {"ranked", json::array()},
                 {"rejected", json::array()}};
  if (const Candidate* proposal = plan.proposal()) report["proposal"] = candidateJson(request, *proposal);
  for (const Candidate& candidate : plan.ranked)
    report["ranked"].push_back(candidateJson(request, candidate));
  for (const Rejection& rejection : plan.rejected)
    report["rejected"].push_back({{"parallel", degreesJson(rejection.split.degrees)},
                                  {"reason", rejection.reason},
                                  {"least_bytes", rejection.least_bytes > 0 ? json(rejection.least_bytes) : json()}});
  return report.dump(2);
}

}  // namespace latentd::plan
