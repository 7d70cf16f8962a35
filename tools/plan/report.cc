#include "tools/plan/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "tools/plan/amount_text.h"

namespace latentd::plan {
namespace {

constexpr double kBillion = 1e9;
// Examples of splits that are out for the same reason.
constexpr size_t kExamplesMax = 4;

std::string headText(const Request& request, const Plan& plan) {
  const auto& [model, job, hardware, gpus, goal] = request;
  const uint64_t parameters = transformerParameters(model.transformer).total(model.transformer.layers);
  std::string text = fmt::format(
      "{}\n  transformer: {:.2f} billion parameters, dim {}, {} heads, {} layers, ffn {}\n"
      "  job: {} frames {}x{}, {} tokens, {} steps of {} {}, {}\n"
      "  {} x {} ({}), {} each, {} to a host over {} at {:.0f} GB/s each way\n",
      model.dir, static_cast<double>(parameters) / kBillion, model.transformer.dim(), model.transformer.heads,
      model.transformer.layers, model.transformer.ffn_dim, job.frames, job.width, job.height, tokens(model, job),
      job.steps, job.branches(), job.guided() ? "passes (guidance)" : "pass", toString(job.dtype), gpus,
      hardware.gpu.name, goal == Goal::kLatency ? "soonest video" : "most videos", gibText(hardware.memory_bytes),
      hardware.gpus_per_host, toString(hardware.link), hardware.linkBandwidth() / kBillion);
  if (gpus > hardware.gpus_per_host) {
    text += fmt::format("  {} hosts, joined by {:.0f} GB/s for each GPU\n",
                        (gpus + hardware.gpus_per_host - 1) / hardware.gpus_per_host,
                        ratesOf(hardware, job.dtype).network_bytes / kBillion);
  }
  if (model.parameters_on_disk && *model.parameters_on_disk != parameters) {
    text += fmt::format("  note: the transformer's files have {} parameters, its config.json makes {}\n",
                        *model.parameters_on_disk, parameters);
  }
  const StepTime& step = plan.one_gpu;
  text += fmt::format(
      "  a step on one GPU: {} ({} products, {} attention, {} passes over activations; the host submits it in {})\n",
      secondsText(step.total), secondsText(step.matmul), secondsText(step.attention), secondsText(step.memory),
      secondsText(step.host));
  return text;
}

std::string nameOf(const Candidate& candidate) {
  std::string name = toString(candidate.split);
  if (candidate.split.degrees.ring > 1) name += candidate.split.ring_gathers ? " (all-gather)" : " (exchange)";
  if (!candidate.split.batched) name += ", separate branches";
  return name;
}

std::string decodeText(const Candidate& candidate) {
  return candidate.decode_gpus == 1 ? "1" : fmt::format("{} (spatial)", candidate.decode_gpus);
}

std::string rankedText(const Plan& plan, size_t shown) {
  std::vector<std::vector<std::string>> rows = {{"denoiser", "GPUs in all", "denoiser's", "decoder's", "memory",
                                                 "sent a step", "waiting", "step", "job", "jobs/h", "efficiency", ""}};
  const Candidate* proposal = plan.proposal();
  for (size_t i = 0; i < plan.ranked.size(); ++i) {
    const Candidate& candidate = plan.ranked[i];
    // The proposal is shown wherever it stands.
    if (i >= shown && &candidate != proposal) continue;
    rows.push_back({nameOf(candidate), std::to_string(candidate.usedGpus()), std::to_string(candidate.split.gpus()),
                    decodeText(candidate), gibText(candidate.busiest_bytes), trafficText(candidate.traffic.total()),
                    secondsText(candidate.step.exchange + candidate.step.bubble), secondsText(candidate.step.total),
                    secondsText(candidate.job_seconds), rateText(candidate.jobs_per_hour),
                    fmt::format("{:.2f}", candidate.efficiency),
                    &candidate == proposal       ? "<- proposed"
                    : candidate.unserved.empty() ? ""
                                                 : fmt::format("not served yet: {}", candidate.unserved)});
  }
  std::string text = tableText(rows);
  if (plan.ranked.size() > shown) text += fmt::format("  and {} more (--json has all)\n", plan.ranked.size() - shown);
  return text;
}

std::string strategiesText(const Traffic& traffic) {
  std::string text;
  const std::pair<const char*, double> all[] = {{"cfg", traffic.cfg},
                                                {"ring", traffic.ring},
                                                {"ulysses", traffic.ulysses},
                                                {"pp", traffic.pp},
                                                {"tp", traffic.tp}};
  for (const auto& [name, bytes] : all) {
    if (bytes > 0) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, trafficText(bytes));
  }
  return text.empty() ? "nothing" : text;
}

std::string memoryText(const char* name, const RankMemory& memory) {
  return fmt::format("  {} {} a rank: weights {}, activations {}, exchange buffers {}, pools {}, process {}\n", name,
                     gibText(memory.total()), gibText(memory.weights), gibText(memory.activations),
                     gibText(memory.buffers), gibText(memory.pools), gibText(memory.process));
}

std::string headsText(const Request& request, const Candidate& candidate) {
  const HeadTransport heads = headTransport(candidate.split.degrees, request.hardware);
  return heads.reason.empty() ? "" : fmt::format("  heads scattered over {}, as {}\n", heads.name(), heads.reason);
}

// What the proposal leaves unused, and why.
std::string idleText(const Request& request, const Plan& plan, const Candidate& best) {
  const uint32_t beyond = request.gpus - best.gpus;
  if (beyond == 0 && best.usedGpus() == best.gpus) return "";
  const bool is_limited = beyond > 0 && !plan.ranked.front().unserved.empty();
  const std::string why = is_limited
                              ? fmt::format("this version serves one host, of {}", request.hardware.gpus_per_host)
                              : "more would not help";
  return fmt::format("  uses {} of the {} GPUs: {}\n", best.usedGpus(), request.gpus, why);
}

std::string proposalText(const Request& request, const Plan& plan) {
  const Candidate* best = plan.proposal();
  if (best == nullptr) return "nothing of this is served yet: no topology is proposed\n";
  std::string text = fmt::format("proposed: {}\n", nameOf(*best)) + idleText(request, plan, *best);
  if (plan.goal == Goal::kThroughput && best != &plan.ranked.front() && plan.ranked.front().unserved.empty())
    text += "  of those within 1 % of the most jobs an hour, the one with the soonest video\n";
  text += fmt::format("  a rank sends a step: {}; the decoder a video: {}\n", strategiesText(best->traffic),
                      best->decode_sent_bytes > 0 ? trafficText(best->decode_sent_bytes) : "nothing");
  text += headsText(request, *best);
  text += memoryText("denoiser", best->denoise) + memoryText("text encoder", best->text) +
          memoryText("decoder", best->decode);
  text += fmt::format("  a job: text {}, denoising {}, decoding {}\n", secondsText(best->text_seconds),
                      secondsText(best->job_seconds - best->text_seconds - best->decode_seconds),
                      secondsText(best->decode_seconds));
  return text;
}

std::string rejectedText(const Plan& plan) {
  std::map<std::string, std::vector<std::string>> by_reason;
  for (const Rejection& rejection : plan.rejected)
    by_reason[rejection.reason].push_back(
        toString(rejection.split) +
        (rejection.least_bytes > 0 ? fmt::format(" needs {}", gibText(rejection.least_bytes)) : ""));
  std::string text = plan.rejected.empty() ? "" : "not possible, by the limit that forbids it:\n";
  for (const auto& [reason, splits] : by_reason) {
    text += fmt::format("  {}: ", reason);
    for (size_t i = 0; i < std::min(splits.size(), kExamplesMax); ++i)
      text += (i == 0 ? "" : "; ") + splits[i];
    if (splits.size() > kExamplesMax) text += fmt::format("; and {} more", splits.size() - kExamplesMax);
    text += "\n";
  }
  return text;
}

}  // namespace

std::string reportText(const Request& request, const Plan& plan, size_t shown) {
  return headText(request, plan) + rankedText(plan, shown) + proposalText(request, plan) + rejectedText(plan) +
         "All times are predictions from what one and two H200 were measured to do; exchanges count as not hidden, "
         "except the turns of a ring. Heads of ulysses go as ulysses_transport: auto has them, by direct writes "
         "(cuda_ipc) between GPUs of one host that NVLink joins, else by c10d.\n";
}

}  // namespace latentd::plan
