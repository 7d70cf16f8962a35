#include "tools/plan/stage_time.h"

#include <algorithm>

#include "tools/plan/vae_work.h"

namespace latentd::plan {
namespace {

constexpr double kMultiplyAdd = 2;
// Operators of a UMT5 layer: two norms, four products of attention and three of the feed-forward part, and between
// them.
constexpr double kTextKernelsPerLayer = 30;

}  // namespace

double textSeconds(const Model& model, const Job& job, const Hardware& hardware) {
  const Rates rates = ratesOf(hardware, job.dtype);
  const double embedding = static_cast<double>(model.text.vocab_size * model.text.d_model);
  const double products = static_cast<double>(textParameters(model.text)) - embedding;
  const double texts = job.branches();
  const double device = texts * kMultiplyAdd * products * static_cast<double>(kTextRows) / rates.matmul_flops;
  const double host = texts * kTextKernelsPerLayer * static_cast<double>(model.text.layers) * rates.kernel_seconds;
  return std::max(device, host);
}

DecodeTime decodeTime(const Model& model, const Job& job, uint32_t spatial, const Hardware& hardware) {
  const Rates rates = ratesOf(hardware, job.dtype);
  const VaeWork work = vaeWork(model, job);
  const int64_t height = latentShape(model, job).height;
  const double share = static_cast<double>((height + spatial - 1) / spatial) / static_cast<double>(height);
  DecodeTime time;
  time.seconds = share * work.flops / rates.convolution_flops;
  if (spatial == 1) return time;
  const double neighbours = spatial > 2 ? 2 : 1;
  const double gathered = work.gather_bytes * (spatial - 1) / spatial;
  time.sent_bytes = neighbours * work.halo_bytes + gathered + share * work.video_bytes;
  time.seconds += static_cast<double>(work.exchanges) * rates.link_latency + time.sent_bytes / rates.link_bytes;
  return time;
}

}  // namespace latentd::plan
