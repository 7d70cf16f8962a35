#include "tools/plan/search.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <tuple>

#include "runtime/config/value.h"
#include "tools/plan/amount_text.h"
#include "tools/plan/stage_time.h"

namespace latentd::plan {
namespace {

constexpr double kSecondsPerHour = 3600;
constexpr uint64_t kGiB = uint64_t{1} << 30;
// Throughputs that are so near count as equal.
constexpr double kNearly = 0.99;

// Variants of one set of degrees, best first where memory allows all.
std::vector<Split> variants(const Job& job, const Hardware& hardware, const mesh::MeshDegrees& degrees) {
  std::vector<Split> found;
  const bool direct_heads = headTransport(degrees, hardware).direct;
  const bool has_batch = job.branches() / degrees.cfg > 1 && degrees.pp == 1;
  for (const bool gathers : {true, false}) {
    if (gathers && degrees.ring == 1) continue;
    Split& split = found.emplace_back(Split{.degrees = degrees, .ring_gathers = gathers, .direct_heads = direct_heads});
    if (!has_batch) continue;
    Split separate = split;
    separate.batched = false;
    found.push_back(separate);
  }
  return found;
}

// Sums over the GPUs of what groups put on them.
template <class T>
T busiest(const Candidate& candidate, T denoise, T text, T decode) {
  T most = 0;
  for (uint32_t gpu = 0; gpu < candidate.gpus; ++gpu) {
    T sum = 0;
    if (gpu < candidate.split.gpus()) sum += denoise;
    if (gpu == candidate.text_gpu) sum += text;
    if (gpu + candidate.decode_gpus >= candidate.gpus) sum += decode;
    most = std::max(most, sum);
  }
  return most;
}

// What is true of a split whatever the decoder has.
Candidate withDenoiser(const Request& request, const Split& split, const StepTime& one_gpu) {
  const auto& [model, job, hardware, gpus, goal] = request;
  Candidate candidate{.split = split};
  const bool on_one_host = split.gpus() <= hardware.gpus_per_host;
  candidate.gpus = on_one_host ? std::min(gpus, hardware.gpus_per_host) : gpus;
  candidate.unserved = on_one_host ? "" : "several hosts";
  candidate.text_gpu = split.gpus() < candidate.gpus ? candidate.gpus - 1 : 0;
  candidate.step = stepTime(model, job, split, hardware);
  candidate.traffic = traffic(model, job, split);
  candidate.denoise = denoiserMemory(model, job, split);
  candidate.text = textMemory(model, job);
  candidate.text_seconds = textSeconds(model, job, hardware);
  candidate.efficiency = one_gpu.total / (candidate.step.total * split.ranks());
  return candidate;
}

Candidate withDecoder(const Request& request, Candidate candidate, uint32_t decode_gpus) {
  const auto& [model, job, hardware, gpus, goal] = request;
  candidate.decode_gpus = decode_gpus;
  candidate.decode = decoderMemory(model, job, decode_gpus);
  candidate.busiest_bytes =
      busiest(candidate, candidate.denoise.total(), candidate.text.total(), candidate.decode.total());
  const DecodeTime decode = decodeTime(model, job, decode_gpus, hardware);
  candidate.decode_seconds = decode.seconds;
  candidate.decode_sent_bytes = decode.sent_bytes;
  const double denoise_seconds = job.steps * candidate.step.total;
  candidate.job_seconds = candidate.text_seconds + denoise_seconds + candidate.decode_seconds;
  // Groups that share a GPU take turns on it.
  const double busy = busiest(candidate, denoise_seconds / candidate.split.degrees.dp, candidate.text_seconds,
                              candidate.decode_seconds);
  candidate.jobs_per_hour = kSecondsPerHour / busy;
  return candidate;
}

// What is shown as equal is equal here.
double shown(Goal goal, const Candidate& candidate) {
  return goal == Goal::kThroughput ? -shownRate(candidate.jobs_per_hour) : shownSeconds(candidate.job_seconds);
}

bool isBefore(Goal goal, const Candidate& left, const Candidate& right) {
  const auto key = [goal](const Candidate& candidate) {
    return std::tuple(shown(goal, candidate), candidate.usedGpus(), candidate.job_seconds);
  };
  return key(left) < key(right);
}

// What fits best of all variants and decoders, or else what needs least.
struct Outcome {
  std::optional<Candidate> best;
  Candidate least;
};

Outcome tryDegrees(const Request& request, const mesh::MeshDegrees& degrees, const StepTime& one_gpu) {
  Outcome outcome;
  const auto rows = static_cast<uint64_t>(latentShape(request.model, request.job).height);
  for (const Split& split : variants(request.job, request.hardware, degrees)) {
    const Candidate spread = withDenoiser(request, split, one_gpu);
    const auto decode_max =
        static_cast<uint32_t>(std::min<uint64_t>({spread.gpus, request.hardware.gpus_per_host, rows}));
    for (uint32_t decode_gpus = 1; decode_gpus <= decode_max; ++decode_gpus) {
      Candidate candidate = withDecoder(request, spread, decode_gpus);
      if (outcome.least.busiest_bytes == 0 || candidate.busiest_bytes < outcome.least.busiest_bytes)
        outcome.least = candidate;
      if (candidate.busiest_bytes > request.hardware.memory_bytes) continue;
      if (!outcome.best || isBefore(request.goal, candidate, *outcome.best)) outcome.best = std::move(candidate);
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
  found.plan.goal = request.goal;
  found.plan.one_gpu = stepTime(request.model, request.job, {}, request.hardware);
  for (uint32_t used = 1; used <= request.gpus; ++used) {
    for (const mesh::MeshDegrees& degrees : factorisations(used)) {
      std::string reason = obstacle(request, degrees);
      uint64_t least_bytes = 0;
      if (reason.empty()) {
        Outcome outcome = tryDegrees(request, degrees, found.plan.one_gpu);
        if (outcome.best) {
          found.plan.ranked.push_back(std::move(*outcome.best));
          continue;
        }
        reason = fmt::format("a GPU has {}", gibText(request.hardware.memory_bytes));
        least_bytes = outcome.least.busiest_bytes;
        if (!found.least || outcome.least.busiest_bytes < found.least->busiest_bytes) found.least = outcome.least;
      }
      found.plan.rejected.push_back({{.degrees = degrees}, std::move(reason), least_bytes});
    }
  }
  std::stable_sort(found.plan.ranked.begin(), found.plan.ranked.end(),
                   [&](const Candidate& a, const Candidate& b) { return isBefore(request.goal, a, b); });
  return found;
}

// The fewest GPUs more that would do, in doublings.
std::string whatWouldFit(const Request& request) {
  Request larger = request;
  for (larger.gpus *= 2; larger.gpus <= kGpusMax; larger.gpus *= 2) {
    const Findings found = explore(larger);
    if (const Candidate* fits = found.plan.proposal())
      return fmt::format("--gpus {} ({})", larger.gpus, toString(fits->split));
  }
  return "a smaller --size or fewer --frames";
}

}  // namespace

uint32_t Candidate::usedGpus() const {
  const uint32_t decode_first = gpus - decode_gpus;
  const uint32_t denoise_end = split.gpus();
  const uint32_t shared = denoise_end > decode_first ? denoise_end - decode_first : 0;
  // Text has the denoiser's first GPU, or the last one, which the decoder has too.
  return denoise_end + decode_gpus - shared;
}

const Candidate* Plan::proposal() const {
  const Candidate* first = nullptr;
  const Candidate* soonest = nullptr;
  for (const Candidate& candidate : ranked) {
    if (!candidate.unserved.empty()) continue;
    if (first == nullptr) first = soonest = &candidate;
    const bool is_near = candidate.jobs_per_hour >= kNearly * first->jobs_per_hour;
    if (is_near && candidate.job_seconds < soonest->job_seconds) soonest = &candidate;
  }
  return goal == Goal::kLatency ? first : soonest;
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
  if (degrees.dp > 1 && goal == Goal::kLatency)
    return "dp is for --goal throughput: replicas make no single job faster";
  if (degrees.cfg > job.branches()) {
    return job.guided() ? "cfg is at most 2: guidance has two passes"
                        : "cfg is 1 where --guidance is 1 or less: one pass";
  }
  const int64_t head_ranks = int64_t{degrees.ulysses} * degrees.tp;
  if (config.heads % head_ranks != 0) return fmt::format("ulysses x tp must divide the model's {} heads", config.heads);
  if (config.ffn_dim % degrees.tp != 0) return fmt::format("tp must divide the model's ffn_dim, {}", config.ffn_dim);
  if (degrees.pp > config.layers) return fmt::format("pp is at most the model's {} layers", config.layers);
  const int64_t sequence = tokens(model, job);
  if (int64_t{degrees.ring} * degrees.ulysses > sequence)
    return fmt::format("ring x ulysses is at most the number of tokens, {}", sequence);
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
