#include "tools/plan/denoiser_work.h"

#include "tests/support/catch.h"
#include "tests/tools/plan/model_fixture.h"

namespace latentd::plan {
namespace {

const Job kPlain{.guidance = 1.0};
const Job kSmall{.width = 416, .height = 240, .frames = 17, .guidance = 1.0};

double stepSeconds(const Sizes& sizes, const Job& job, const Split& split, const char* gpu = "h200") {
  return stepTime(modelOf(sizes), job, split, *findHardware(gpu, std::nullopt)).total;
}

}  // namespace

TEST_CASE("plan: the work of a pass on one GPU", "[tools][plan]") {
  const DenoiserWork work = denoiserWork(modelOf(kWan13), kPlain, {});
  // 30 layers x 2 x 32,760 x (6 x 1536^2 + 2 x 1536 x 8960), and 2 x 32,760 x 1536 x 64 x 2 at both ends.
  CHECK(work.matmul_flops == 81'940'850'933'760);
  // 30 x 4 x 32,760 x (32,760 + 512) x 1536.
  CHECK(work.attention_flops == 200'907'089'510'400);
  CHECK(work.block_attention_flops == 0);
  // 30 x 32,760 x (234 x 1536 + 4 x 8960).
  CHECK(work.memory_bytes == 388'465'459'200);
  CHECK(work.kernels == 1'470);
  CHECK(work.collectives == 0);
}

TEST_CASE("plan: ranks divide the work", "[tools][plan]") {
  const Model model = modelOf(kWan13);
  const double whole = denoiserWork(model, kPlain, {}).attention_flops;
  for (const Split& split : {Split{.degrees = {.ulysses = 4}}, Split{.degrees = {.tp = 4}},
                             Split{.degrees = {.ring = 4}}, Split{.degrees = {.ring = 2, .ulysses = 2}}}) {
    const DenoiserWork work = denoiserWork(model, kPlain, split);
    CHECK((work.attention_flops + work.block_attention_flops) * 4 == Approx(whole));
  }
  // With guidance both branches are one pass, unless each has ranks of its own.
  CHECK(denoiserWork(model, {}, {}).attention_flops == 2 * whole);
  CHECK(denoiserWork(model, {}, {.degrees = {.cfg = 2}}).attention_flops == whole);
  CHECK(rankShape(model, {}, {.batched = false}).passes == 2);
  // 32,760 tokens over 7 ranks are 4,680 each; over 16 they are padded to 2,048.
  CHECK(rankShape(model, {}, {.degrees = {.ring = 7}}).tokens == 4'680);
  CHECK(rankShape(model, {}, {.degrees = {.ring = 16}}).tokens == 2'048);
  CHECK(rankShape(model, {}, {.degrees = {.pp = 4}}).layers == 8);
}

TEST_CASE("plan: bytes that a rank sends in a step", "[tools][plan]") {
  const Model model = modelOf(kWan13);
  // 30 layers x 4 x (2 branches x 8,190 tokens x 1536 x 2 bytes) x 3/4.
  CHECK(traffic(model, {}, {.degrees = {.ulysses = 4}}).ulysses == 4'528'742'400);
  // 30 x 1 x 2 x (16,380 x 1536 x 2).
  CHECK(traffic(model, kPlain, {.degrees = {.ring = 2}}).ring == 3'019'161'600);
  CHECK(traffic(model, kPlain, {.degrees = {.ring = 2}, .ring_gathers = true}).ring == 3'019'161'600);
  // 30 x 3 x (32,760 x (1536 x 2 + 4)) x 2 x 1/2.
  CHECK(traffic(model, kPlain, {.degrees = {.tp = 2}}).tp == 9'069'278'400);
  // 32,760 x 4 x 16 x 2.
  CHECK(traffic(model, {}, {.degrees = {.cfg = 2}}).cfg == 4'193'280);
  // 32,760 x 1536 x 2 and the velocity.
  CHECK(traffic(model, kPlain, {.degrees = {.pp = 2}}).pp == 100'638'720 + 4'193'280);
  CHECK(traffic(model, {}, {}).total() == 0);
  // Both at once: the ring turns with the rows of the Ulysses group and a part of the heads.
  const Traffic both = traffic(model, {}, {.degrees = {.cfg = 2, .ring = 2, .ulysses = 2}});
  CHECK(both.ulysses == 30 * 4 * (8'190.0 * 1536 * 2) / 2);
  CHECK(both.ring == 30 * 2 * (8'190.0 * 1536 * 2));
  CHECK(both.cfg == 8'190 * 4 * 16 * 2);
}

TEST_CASE("plan: a step on one H200 is predicted within 20 % of what was measured", "[tools][plan]") {
  // RESULTS.md, "Stages on a GPU": 599-602 ms, and 20-27 ms bound by the host.
  CHECK(stepSeconds(kWan13, kPlain, {}) == Approx(0.6005).epsilon(0.2));
  const StepTime small = stepTime(modelOf(kWan13), kSmall, {}, *findHardware("h200", std::nullopt));
  CHECK(small.total == Approx(0.0235).epsilon(0.2));
  CHECK(small.host > small.device);
}

TEST_CASE("plan: exchanges are predicted within 15 % of what was measured between two H200", "[tools][plan]") {
  const Rates rates = ratesOf(*findHardware("h200", std::nullopt), DType::kBFloat16);
  const auto seconds = [&](double bytes) { return rates.link_latency + bytes / rates.link_bytes; };
  // All-to-all of one of query, key and value: half of sequence x heads x 128 / 2 ranks x 2 bytes leaves a rank.
  CHECK(seconds(32'760.0 * 12 * 128 / 2) == Approx(0.160e-3).epsilon(0.15));
  CHECK(seconds(32'760.0 * 40 * 128 / 2) == Approx(0.399e-3).epsilon(0.15));
  CHECK(seconds(75'600.0 * 40 * 128 / 2) == Approx(0.783e-3).epsilon(0.15));
  // All-reduce of 128 MiB: on two ranks each sends it once.
  CHECK(seconds(128 << 20) == Approx(0.576e-3).epsilon(0.15));
}

TEST_CASE("plan: rounds of scattered heads are predicted within 10 % of what was measured between two H200",
          "[tools][plan]") {
  const Rates rates = ratesOf(*findHardware("h200", std::nullopt), DType::kBFloat16);
  struct Round {
    double tokens, heads, nccl, direct;  // RESULTS.md, "Heads between ranks"
  };
  for (const Round& round : {Round{32'760, 12, 472e-6, 344e-6}, Round{32'760, 40, 1'382e-6, 1'001e-6},
                             Round{75'600, 40, 3'040e-6, 2'223e-6}}) {
    const double share = round.tokens / 2 * round.heads * 128 * 2;  // of a rank, one of query, key and value
    const double sent = 3 * share / 2;
    const double packing = 3 * 2 * share / rates.memory_bytes;
    CHECK(rates.link_latency + sent / rates.link_bytes + packing == Approx(round.nccl).epsilon(0.1));
    CHECK(rates.direct_latency + sent / rates.direct_bytes == Approx(round.direct).epsilon(0.02));
  }
}

TEST_CASE("plan: a step over two H200 is predicted within 5 % of what was measured, by either transport",
          "[tools][plan]") {
  // RESULTS.md, "Two GPUs".
  CHECK(stepSeconds(kWan13, kPlain, {.degrees = {.ulysses = 2}, .direct_heads = true}) == Approx(0.3094).epsilon(0.05));
  CHECK(stepSeconds(kWan13, kPlain, {.degrees = {.ulysses = 2}}) == Approx(0.3206).epsilon(0.05));
}

TEST_CASE("plan: heads go by direct writes where auto takes them, which pack nothing", "[tools][plan]") {
  Hardware hosts = *findHardware("h200", std::nullopt);
  const HeadTransport near = headTransport({.cfg = 2, .ulysses = 4}, hosts);
  CHECK(near.name() == "cuda_ipc");
  CHECK(near.reason == "its ranks are on GPUs of one host that NVLink joins");
  // One branch a host: heads stay inside.
  CHECK(headTransport({.cfg = 2, .ulysses = 8}, hosts).direct);
  const HeadTransport far = headTransport({.ulysses = 16}, hosts);
  CHECK(far.name() == "c10d");
  CHECK(far.reason == "its ranks are on several hosts");
  const HeadTransport slow = headTransport({.ulysses = 2}, *findHardware("h200", "pcie"));
  CHECK(slow.name() == "c10d");
  CHECK(slow.reason == "GPUs that PCIe joins need not be peers");
  CHECK(headTransport({.ring = 2}, hosts).reason.empty());

  const Model model = modelOf(kWan13);
  const DenoiserWork direct = denoiserWork(model, kPlain, {.degrees = {.ulysses = 2}, .direct_heads = true});
  const DenoiserWork packed = denoiserWork(model, kPlain, {.degrees = {.ulysses = 2}});
  // Query, key and value of 30 layers, read and written: 30 x 3 x 2 x 16,380 x 1536 x 2.
  CHECK(packed.memory_bytes - direct.memory_bytes == 9'057'484'800);
  CHECK(packed.kernels - direct.kernels == 90);
  CHECK(packed.collectives == direct.collectives);
}

TEST_CASE("plan: time follows the rates of the hardware", "[tools][plan]") {
  const double h200 = stepSeconds(kWan14, kPlain, {});
  CHECK(stepSeconds(kWan14, kPlain, {}, "h100") > h200);  // less bandwidth
  CHECK(stepSeconds(kWan14, kPlain, {}, "b200") < h200 / 1.5);
  CHECK(stepSeconds(kWan14, kPlain, {}, "a100") > 2 * h200);

  const Split ulysses{.degrees = {.ulysses = 4}};
  const Model model = modelOf(kWan14);
  const auto on = [&](const char* link) {
    return stepTime(model, kPlain, ulysses, *findHardware("h200", std::string(link)));
  };
  CHECK(on("pcie").exchange > 4 * on("nvlink").exchange);
  CHECK(on("nvlink").total < h200 / 3);

  // Four GPUs on two hosts: half of the peers are behind the network.
  Hardware hosts = *findHardware("h200", std::nullopt);
  hosts.gpus_per_host = 2;
  CHECK(stepTime(model, kPlain, ulysses, hosts).exchange > 3 * on("nvlink").exchange);
  // Guidance alone between the hosts costs next to nothing.
  const Split branches{.degrees = {.cfg = 2, .ulysses = 2}};
  CHECK(stepTime(model, {}, branches, hosts).exchange <
        1.01 * stepTime(model, {}, branches, *findHardware("h200", std::nullopt)).exchange);
}

TEST_CASE("plan: a pipeline waits where it has one branch, less where it has two", "[tools][plan]") {
  const Model model = modelOf(kWan14);
  const Hardware hardware = *findHardware("h200", std::nullopt);
  const StepTime alone = stepTime(model, kPlain, {.degrees = {.pp = 2}}, hardware);
  CHECK(alone.total > 0.98 * stepTime(model, kPlain, {}, hardware).total);
  const StepTime guided = stepTime(model, {}, {.degrees = {.pp = 2}}, hardware);
  CHECK(guided.bubble == Approx((guided.device - guided.bubble) / 2));
}

TEST_CASE("plan: a ring that turns hides its transfers, and pays with a slower kernel", "[tools][plan]") {
  const Model model = modelOf(kWan14);
  const Hardware hardware = *findHardware("h200", std::nullopt);
  const StepTime turns = stepTime(model, kPlain, {.degrees = {.ring = 4}}, hardware);
  const StepTime gathers = stepTime(model, kPlain, {.degrees = {.ring = 4}, .ring_gathers = true}, hardware);
  CHECK(turns.exchange == 0);
  CHECK(gathers.exchange > 0);
  CHECK(turns.attention > 1.5 * gathers.attention);
}

TEST_CASE("plan: hardware that is not known is refused with what is", "[tools][plan]") {
  CHECK(messageOf(findHardware("h900", std::nullopt).status()) ==
        "--gpu: 'h900' is not known, expected one of a100, b200, h100, h200, l40s");
  CHECK(messageOf(findHardware("l40s", "nvlink").status()) == "--link: 'l40s' has no NVLink; expected pcie");
  CHECK(messageOf(findHardware("h200", "usb").status()) == "--link: 'usb', expected nvlink or pcie");
  CHECK(findHardware("l40s", std::nullopt)->link == Link::kPcie);
}

}  // namespace latentd::plan
