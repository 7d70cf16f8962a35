#include "tools/plan/search.h"

#include <algorithm>
#include <array>
#include <set>
#include <utility>
#include <vector>

#include "tests/support/catch.h"
#include "tests/tools/plan/model_fixture.h"
#include "tools/plan/amount_text.h"

namespace latentd::plan {
namespace {

constexpr uint64_t kGiB = uint64_t{1} << 30;

using Key = std::array<uint32_t, 6>;

Key keyOf(const mesh::MeshDegrees& degrees) {
  return {degrees.dp, degrees.cfg, degrees.ring, degrees.ulysses, degrees.pp, degrees.tp};
}

// Ordered factorisations into six: for each prime with exponent e, the ways to put e balls into six boxes.
uint64_t countOfFactorisations(uint32_t number) {
  uint64_t ways = 1;
  for (uint32_t prime = 2; number > 1; ++prime) {
    uint64_t numerator = 1;
    uint64_t denominator = 1;
    for (uint64_t exponent = 1; number % prime == 0; number /= prime, ++exponent) {
      numerator *= exponent + 5;
      denominator *= exponent;
    }
    ways *= numerator / denominator;
  }
  return ways;
}

}  // namespace

TEST_CASE("plan: every factorisation is made, once", "[tools][plan]") {
  for (uint32_t gpus = 1; gpus <= 16; ++gpus) {
    std::set<Key> keys;
    for (const mesh::MeshDegrees& degrees : factorisations(gpus)) {
      CHECK(mesh::DeviceMesh::make(degrees, gpus).ok());
      CHECK(degrees.spatial == 1);
      keys.insert(keyOf(degrees));
    }
    CHECK(keys.size() == factorisations(gpus).size());
    CHECK(keys.size() == countOfFactorisations(gpus));
  }
}

TEST_CASE("plan: every split of at most so many GPUs is ranked or rejected, once", "[tools][plan]") {
  for (const Goal goal : {Goal::kLatency, Goal::kThroughput}) {
    Request request = requestFor(kWan13, 16);
    request.goal = goal;
    const auto plan = search(request);
    REQUIRE(plan.status().ToString() == "OK");
    std::set<Key> seen;
    for (const Candidate& candidate : plan->ranked) {
      CHECK(seen.insert(keyOf(candidate.split.degrees)).second);
      CHECK(candidate.busiest_bytes <= request.hardware.memory_bytes);
    }
    for (const Rejection& rejection : plan->rejected) {
      CHECK(seen.insert(keyOf(rejection.split.degrees)).second);
      CHECK_FALSE(rejection.reason.empty());
    }
    uint64_t expected = 0;
    for (uint32_t gpus = 1; gpus <= 16; ++gpus)
      expected += countOfFactorisations(gpus);
    CHECK(seen.size() == expected);
  }
}

TEST_CASE("plan: what model and job forbid is told", "[tools][plan]") {
  Request request = requestFor(kWan13, 16);
  CHECK(obstacle(request, {.cfg = 2, .ulysses = 4}).empty());
  CHECK(obstacle(request, {.cfg = 4}) == "cfg is at most 2: guidance has two passes");
  CHECK(obstacle(request, {.ulysses = 5}) == "ulysses x tp must divide the model's 12 heads");
  CHECK(obstacle(request, {.ulysses = 4, .tp = 2}) == "ulysses x tp must divide the model's 12 heads");
  CHECK(obstacle(request, {.ring = 5}).empty());
  CHECK(obstacle(request, {.pp = 31}) == "pp is at most the model's 30 layers");
  CHECK(obstacle(request, {.dp = 2}) == "dp is for --goal throughput: replicas make no single job faster");
  request.goal = Goal::kThroughput;
  CHECK(obstacle(request, {.dp = 2}).empty());
  request.job.guidance = 1.0;
  CHECK(obstacle(request, {.cfg = 2}) == "cfg is 1 where --guidance is 1 or less: one pass");
  request.job = {.width = 16, .height = 16, .frames = 1};
  CHECK(obstacle(request, {.ring = 2}) == "ring x ulysses is at most the number of tokens, 1");
}

TEST_CASE("plan: candidates are in the order of the goal", "[tools][plan]") {
  Request request = requestFor(kWan13, 8);
  const auto soonest = search(request);
  REQUIRE(soonest.ok());
  // As it reads: what reads the same is in the order of GPUs.
  const auto sorted = [](const Plan& plan, const auto& shown) {
    return std::is_sorted(plan.ranked.begin(), plan.ranked.end(), [&](const Candidate& a, const Candidate& b) {
      return std::pair(shown(a), a.usedGpus()) < std::pair(shown(b), b.usedGpus());
    });
  };
  CHECK(sorted(*soonest, [](const Candidate& candidate) { return shownSeconds(candidate.job_seconds); }));
  request.goal = Goal::kThroughput;
  const auto most = search(request);
  REQUIRE(most.ok());
  CHECK(sorted(*most, [](const Candidate& candidate) { return -shownRate(candidate.jobs_per_hour); }));
  // Replicas exchange nothing, and the branches of guidance next to nothing: both fill a queue's GPUs, and the latter
  // end the first video sooner.
  const mesh::MeshDegrees& degrees = most->proposal()->split.degrees;
  CHECK(degrees.dp == 4);
  CHECK(degrees.cfg == 2);
  CHECK(most->ranked.front().jobs_per_hour > soonest->ranked.front().jobs_per_hour);
}

TEST_CASE("plan: the proposal uses the GPUs, and only what is served", "[tools][plan]") {
  for (const uint32_t gpus : {1U, 2U, 4U, 8U}) {
    const auto plan = search(requestFor(kWan13, gpus));
    REQUIRE(plan.ok());
    const Candidate* proposal = plan->proposal();
    REQUIRE(proposal != nullptr);
    // The two branches apart are the cheapest division that there is.
    if (gpus > 1) CHECK(proposal->split.degrees.cfg == 2);
    CHECK(proposal->step.total < 1.3 * plan->one_gpu.total / gpus);
  }
  // One host serves; two do not yet: what one does is proposed, as if there were no other.
  const auto hosts = search(requestFor(kWan14, 16));
  REQUIRE(hosts.ok());
  CHECK(hosts->ranked.front().unserved == "several hosts");
  const auto host = search(requestFor(kWan14, 8));
  REQUIRE(host.ok());
  REQUIRE(hosts->proposal() != nullptr);
  CHECK(toString(hosts->proposal()->split) == toString(host->proposal()->split));
  CHECK(hosts->proposal()->job_seconds == host->proposal()->job_seconds);
  CHECK(hosts->proposal()->gpus == 8);
}

TEST_CASE("plan: candidates have the transport of heads that auto would take", "[tools][plan]") {
  Request request = requestFor(kWan13, 16);
  for (const char* link : {"nvlink", "pcie"}) {
    request.hardware = *findHardware("h200", std::string(link));
    const auto plan = search(request);
    REQUIRE(plan.ok());
    size_t direct = 0;
    for (const Candidate& candidate : plan->ranked) {
      INFO(toString(candidate.split));
      CHECK(candidate.split.direct_heads == headTransport(candidate.split.degrees, request.hardware).direct);
      CHECK(candidate.step.total == stepTime(request.model, request.job, candidate.split, request.hardware).total);
      direct += candidate.split.direct_heads ? 1 : 0;
    }
    CHECK((direct > 0) == (request.hardware.link == Link::kNvlink));
  }
}

TEST_CASE("plan: the GPUs of a candidate are those that do anything", "[tools][plan]") {
  const auto used = [](const Split& split, uint32_t gpus, uint32_t decode_gpus) {
    return Candidate{.split = split, .gpus = gpus, .decode_gpus = decode_gpus}.usedGpus();
  };
  CHECK(used({}, 1, 1) == 1);
  CHECK(used({}, 8, 1) == 2);
  CHECK(used({.degrees = {.cfg = 2}}, 8, 3) == 5);
  CHECK(used({.degrees = {.ulysses = 6}}, 8, 8) == 8);
  CHECK(used({.degrees = {.ulysses = 8}}, 8, 2) == 8);
}

TEST_CASE("plan: memory that is too small for one way leaves the others", "[tools][plan]") {
  Request request = requestFor(kWan14, 8);
  const auto roomy = search(request);
  REQUIRE(roomy.ok());
  uint64_t most = 0;
  uint64_t least = roomy->ranked.front().busiest_bytes;
  for (const Candidate& candidate : roomy->ranked) {
    most = std::max(most, candidate.busiest_bytes);
    least = std::min(least, candidate.busiest_bytes);
  }
  REQUIRE(least < most);
  request.hardware.memory_bytes = (least + most) / 2;
  const auto tight = search(request);
  REQUIRE(tight.ok());
  CHECK(tight->ranked.size() < roomy->ranked.size());
  const bool is_told = std::any_of(tight->rejected.begin(), tight->rejected.end(), [&](const Rejection& rejection) {
    return rejection.reason.find("a GPU has ") == 0 && rejection.least_bytes > request.hardware.memory_bytes;
  });
  CHECK(is_told);
}

TEST_CASE("plan: branches one after the other fit where both at once do not", "[tools][plan]") {
  Request request = requestFor(kWan14, 1);
  request.job = {.width = 1280, .height = 720};
  const Split separate{.batched = false};
  const uint64_t both = denoiserMemory(request.model, request.job, {}).total();
  const uint64_t one = denoiserMemory(request.model, request.job, separate).total();
  REQUIRE(one < both);
  const auto roomy = search(request);
  REQUIRE(roomy.ok());
  REQUIRE(roomy->ranked.front().split.batched);
  request.hardware.memory_bytes = roomy->ranked.front().busiest_bytes - 1;
  const auto tight = search(request);
  REQUIRE(tight.ok());
  CHECK_FALSE(tight->ranked.front().split.batched);
}

TEST_CASE("plan: where nothing fits, what would is named and is enough", "[tools][plan]") {
  Request request = requestFor(kWan14, 1);
  request.hardware.memory_bytes = 30 * kGiB;
  const Status status = search(request).status();
  CHECK(status.code() == absl::StatusCode::kResourceExhausted);
  const std::string message = messageOf(status);
  CHECK(message.find("nothing fits 1 GPU with 30.0 GiB each. The least that a GPU needs is ") == 0);
  const size_t memory = message.find("--memory ");
  const size_t gpus = message.find("--gpus ");
  REQUIRE(memory != std::string::npos);
  REQUIRE(gpus != std::string::npos);
  Request roomier = request;
  roomier.hardware.memory_bytes = std::stoull(message.substr(memory + 9)) * kGiB;
  CHECK(search(roomier).ok());
  Request larger = request;
  larger.gpus = static_cast<uint32_t>(std::stoul(message.substr(gpus + 7)));
  CHECK(search(larger).ok());
}

TEST_CASE("plan: memory of a rank", "[tools][plan]") {
  const Model model = modelOf(kWan13);
  // 4.3 GiB of tensors were measured, without process and slots (RESULTS.md).
  const RankMemory alone = denoiserMemory(model, {.guidance = 1.0}, {});
  CHECK(static_cast<double>(alone.weights + alone.activations) == Approx(4.3 * kGiB).epsilon(0.05));
  CHECK(alone.buffers == 0);
  // Tensor and pipeline parallelism divide the weights, the others do not.
  CHECK(denoiserMemory(model, {}, {.degrees = {.ulysses = 4}}).weights == alone.weights);
  CHECK(denoiserMemory(model, {}, {.degrees = {.tp = 4}}).weights < 0.3 * alone.weights);
  CHECK(denoiserMemory(model, {}, {.degrees = {.pp = 2}}).weights < 0.55 * alone.weights);
  // All keys and values on every rank against two blocks of them.
  const Split gathers{.degrees = {.ring = 8}, .ring_gathers = true};
  CHECK(denoiserMemory(model, {}, gathers).buffers > denoiserMemory(model, {}, {.degrees = {.ring = 8}}).buffers);
  // Three targets of 16,380 x 1536 x 2 bytes in 72 blocks of 2 MiB, and the result twice.
  const Split direct{.degrees = {.ulysses = 2}, .direct_heads = true};
  CHECK(denoiserMemory(model, {.guidance = 1.0}, direct).buffers == 72 * (2 << 20) + 2 * 50'319'360);
  // With guidance the same again for one branch, and 144 blocks for both; apart they have the same targets.
  CHECK(denoiserMemory(model, {}, direct).buffers == (72 + 144) * (2 << 20) + 4 * 50'319'360);
  Split apart = direct;
  apart.batched = false;
  CHECK(denoiserMemory(model, {}, apart).buffers == denoiserMemory(model, {.guidance = 1.0}, direct).buffers);
  // The all-to-all keeps none, and has all three sent and received at once.
  CHECK(denoiserMemory(model, {}, {.degrees = {.ulysses = 2}}).buffers == 12 * 50'319'360);
  // UMT5-XXL in bfloat16 has 10.6 GiB.
  CHECK(textMemory(model, {}).weights == uint64_t{2} * 5'680'910'336);
  CHECK(decoderMemory(model, {}, 4).activations < 0.3 * decoderMemory(model, {}, 1).activations);
}

}  // namespace latentd::plan
