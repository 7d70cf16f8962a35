#include "tools/plan/search.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>

#include "runtime/config/value.h"
#include "tools/plan/amount_text.h"
#include "tools/plan/stage_time.h"

namespace latentd::plan {
namespace {

constexpr double kSecondsPerHour = 3600;
constexpr uint64_t kGiB = uint64_t{1} << 30;
// Where to look for what would fit, when nothing does: eight hosts of eight.
constexpr uint32_t kGpusMax = 64;

// What the runtime does not reach.
std::string unservedOf(const Request& request) {
  return request.gpus > request.hardware.gpus_per_host ? "several hosts" : "";
}

// Variants of one set of degrees, best first where memory allows all.
std::vector<Split> variants(const Job& job, const mesh::MeshDegrees& degrees) {
  std::vector<Split> found;
  const bool has_batch = job.branches() / degrees.cfg > 1 && degrees.pp == 1;
  for (const bool gathers : {true, false}) {
    if (gathers && degrees.ring == 1) continue;
    found.push_back({.degrees = degrees, .ring_gathers = gathers});
    if (has_batch) found.push_back({.degrees = degrees, .ring_gathers = gathers, .batched = false});
  }
  return found;
}

// Sums over the GPUs of what groups put on them.
template <class T>
T busiest(uint32_t gpus, const Candidate& candidate, T denoise, T text, T decode) {
  T most = 0;
  for (uint32_t gpu = 0; gpu < gpus; ++gpu) {
    T sum = 0;
    if (gpu < candidate.split.gpus()) sum += denoise;
    if (gpu == candidate.text_gpu) sum += text;
    if (gpu + candidate.decode_gpus >= gpus) sum += decode;
    most = std::max(most, sum);
  }
  return most;
}

Candidate predict(const Request& request, const Split& split, uint32_t decode_gpus, const StepTime& one_gpu) {
  const auto& [model, job, hardware, gpus, goal] = request;
  Candidate candidate{.split = split, .decode_gpus = decode_gpus};
  candidate.text_gpu = split.gpus() < gpus ? gpus - 1 : 0;
  candidate.step = stepTime(model, job, split, hardware);
  candidate.traffic = traffic(model, job, split);
  candidate.denoise = denoiserMemory(model, job, split);
  candidate.text = textMemory(model, job);
  candidate.decode = decoderMemory(model, job, decode_gpus);
  candidate.busiest_bytes =
      busiest(gpus, candidate, candidate.denoise.total(), candidate.text.total(), candidate.decode.total());
  candidate.text_seconds = textSeconds(model, job, hardware);
  const DecodeTime decode = decodeTime(model, job, decode_gpus, hardware);
  candidate.decode_seconds = decode.seconds;
  candidate.decode_sent_bytes = decode.sent_bytes;
  const double denoise_seconds = job.steps * candidate.step.total;
  candidate.job_seconds = candidate.text_seconds + denoise_seconds + candidate.decode_seconds;
  // Groups that share a GPU take turns on it.
  const double busy =
      busiest(gpus, candidate, denoise_seconds / split.degrees.dp, candidate.text_seconds, candidate.decode_seconds);
  candidate.jobs_per_hour = kSecondsPerHour / busy;
  candidate.efficiency = one_gpu.total / (candidate.step.total * split.ranks());
  candidate.unserved = unservedOf(request);
  return candidate;
}

// Throughputs within about a percent count as equal: predictions are no better, and the sooner video is.
double throughputClass(const Candidate& candidate) { return std::floor(100 * std::log(candidate.jobs_per_hour)); }

bool isBetter(Goal goal, const Candidate& left, const Candidate& right) {
  if (goal == Goal::kThroughput && throughputClass(left) != throughputClass(right))
    return throughputClass(left) > throughputClass(right);
  if (left.job_seconds != right.job_seconds) return left.job_seconds < right.job_seconds;
  return left.split.gpus() < right.split.gpus();
}

// What fits best of all variants and decoders, or else what needs least.
struct Outcome {
  std::optional<Candidate> best;
  Candidate least;
};

Outcome tryDegrees(const Request& request, const mesh::MeshDegrees& degrees, const StepTime& one_gpu) {
  Outcome outcome;
  const auto rows = static_cast<uint64_t>(latentShape(request.model, request.job).height);
  const uint32_t decode_max =
      static_cast<uint32_t>(std::min<uint64_t>({request.gpus, request.hardware.gpus_per_host, rows}));
  for (const Split& split : variants(request.job, degrees)) {
    for (uint32_t decode_gpus = 1; decode_gpus <= decode_max; ++decode_gpus) {
      Candidate candidate = predict(request, split, decode_gpus, one_gpu);
      if (outcome.least.busiest_bytes == 0 || candidate.busiest_bytes < outcome.least.busiest_bytes)
        outcome.least = candidate;
      if (candidate.busiest_bytes > request.hardware.memory_bytes) continue;
      if (!outcome.best || isBetter(request.goal, candidate, *outcome.best)) outcome.best = std::move(candidate);
    }
  }
  return outcome;
}

struct Findings {
  Plan plan;
  std::optional<Candidate> least;  // of what does not fit
};

Findings explore(const Request& request) {
  Findings found;
  found.plan.one_gpu = stepTime(request.model, request.job, {}, request.hardware);
  for (uint32_t used = 1; used <= request.gpus; ++used) {
    for (const mesh::MeshDegrees& degrees : factorisations(used)) {
      std::string reason = obstacle(request, degrees);
      if (reason.empty()) {
        Outcome outcome = tryDegrees(request, degrees, found.plan.one_gpu);
        if (outcome.best) {
          found.plan.ranked.push_back(std::move(*outcome.best));
          continue;
        }
        reason = fmt::format("needs {} on a GPU that has {}", gibText(outcome.least.busiest_bytes),
                             gibText(request.hardware.memory_bytes));
        if (!found.least || outcome.least.busiest_bytes < found.least->busiest_bytes) found.least = outcome.least;
      }
      found.plan.rejected.push_back({{.degrees = degrees}, std::move(reason)});
    }
  }
  std::stable_sort(found.plan.ranked.begin(), found.plan.ranked.end(),
                   [&](const Candidate& a, const Candidate& b) { return isBetter(request.goal, a, b); });
  return found;
}

// The fewest GPUs more that would do, in doublings.
std::string whatWouldFit(const Request& request) {
  Request larger = request;
  for (larger.gpus *= 2; larger.gpus <= kGpusMax; larger.gpus *= 2) {
    const Findings found = explore(larger);
    if (!found.plan.ranked.empty())
      return fmt::format("--gpus {} ({})", larger.gpus, toString(found.plan.ranked.front().split));
  }
  return "a smaller --size or fewer --frames";
}

}  // namespace

const Candidate* Plan::proposal() const {
  const auto served = std::find_if(ranked.begin(), ranked.end(), [](const Candidate& c) { return c.unserved.empty(); });
  return served == ranked.end() ? nullptr : &*served;
}

std::vector<mesh::MeshDegrees> factorisations(uint32_t gpus) {
  static constexpr uint32_t mesh::MeshDegrees::*kFree[] = {&mesh::MeshDegrees::dp,   &mesh::MeshDegrees::cfg,
                                                           &mesh::MeshDegrees::ring, &mesh::MeshDegrees::ulysses,
                                                           &mesh::MeshDegrees::pp,   &mesh::MeshDegrees::tp};
  std::vector<mesh::MeshDegrees> found;
  mesh::MeshDegrees degrees;
  const auto divide = [&](const auto& self, size_t dim, uint32_t rest) -> void {
    if (dim + 1 == std::size(kFree)) {
      degrees.*kFree[dim] = rest;
      found.push_back(degrees);
      return;
    }
    for (uint32_t degree = 1; degree <= rest; ++degree) {
      if (rest % degree != 0) continue;
      degrees.*kFree[dim] = degree;
      self(self, dim + 1, rest / degree);
    }
  };
  divide(divide, 0, gpus);
  return found;
}

std::string obstacle(const Request& request, const mesh::MeshDegrees& degrees) {
  const auto& [model, job, hardware, gpus, goal] = request;
  const stages::wan::TransformerConfig& config = model.transformer;
  if (degrees.dp > 1 && goal == Goal::kLatency) return "replicas make no single job faster";
  if (degrees.cfg > job.branches()) {
    return job.guided() ? "guidance has two branches, cfg more" : "without guidance there is one branch, cfg has more";
  }
  const int64_t head_ranks = int64_t{degrees.ulysses} * degrees.tp;
  if (config.heads % head_ranks != 0)
    return fmt::format("{} heads do not divide over ulysses x tp = {}", config.heads, head_ranks);
  if (config.ffn_dim % degrees.tp != 0)
    return fmt::format("ffn_dim {} does not divide over tp = {}", config.ffn_dim, degrees.tp);
  if (degrees.pp > config.layers)
    return fmt::format("pp = {} has more stages than layers ({})", degrees.pp, config.layers);
  const int64_t sequence = tokens(model, job);
  if (int64_t{degrees.ring} * degrees.ulysses > sequence)
    return fmt::format("ring x ulysses = {} has more ranks than tokens ({})", degrees.ring * degrees.ulysses, sequence);
  return "";
}

StatusOr<Plan> search(const Request& request) {
  Findings found = explore(request);
  if (!found.plan.ranked.empty()) return std::move(found.plan);
  return absl::ResourceExhaustedError(fmt::format(
      "nothing fits {} with {} each. The least that a GPU needs is {} ({}: denoiser {}, text encoder {}, decoder {}). "
      "These would do: "
      "--memory {}, or {}",
      request.gpus == 1 ? "1 GPU" : fmt::format("{} GPUs", request.gpus), gibText(request.hardware.memory_bytes),
      gibText(found.least->busiest_bytes), toString(found.least->split), gibText(found.least->denoise.total()),
      gibText(found.least->text.total()), gibText(found.least->decode.total()),
      config::formatBytes((found.least->busiest_bytes + kGiB - 1) / kGiB * kGiB), whatWouldFit(request)));
}

}  // namespace latentd::plan
