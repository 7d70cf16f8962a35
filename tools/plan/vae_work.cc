#include "tools/plan/vae_work.h"

#include <algorithm>

namespace latentd::plan {
namespace {

constexpr double kMultiplyAdd = 2;
// Frames that a causal convolution of three remembers, and the rows of a halo on each side.
constexpr int64_t kHistory = 2;
constexpr int64_t kHaloRows = 1;

// Where the walk stands: the size of the image, and how many frames the video and a chunk have there.
class Walk {
 public:
  Walk(const Model& model, const Job& job)
      : latents_(latentShape(model, job)),
        frames_(latents_.frames),
        height_(latents_.height),
        width_(latents_.width),
        element_(static_cast<int64_t>(byteSize(job.dtype))) {}

  const VaeWork& work() const { return work_; }

  // A 3x3x3 convolution, or 3x1x1 with spatial = 1.
  void causal(int64_t in, int64_t out, int64_t spatial = 3) {
    addProduct(3 * spatial * spatial * in, out, positions());
    work_.parameters += static_cast<uint64_t>(3 * spatial * spatial * in * out + out);
    work_.cache_bytes += static_cast<uint64_t>(kHistory * height_ * width_ * in * element_);
    if (spatial > 1) addHalo(in, frames_);
  }
  void pointwise(int64_t in, int64_t out) {
    addProduct(in, out, positions());
    work_.parameters += static_cast<uint64_t>(in * out + out);
  }
  void norm(int64_t channels) { work_.parameters += static_cast<uint64_t>(channels); }

  void residual(int64_t in, int64_t out) {
    norm(in);
    causal(in, out);
    norm(out);
    causal(out, out);
    if (in != out) pointwise(in, out);
    hold(std::max(in, out));
  }

  // Each frame by itself.
  void attention(int64_t channels) {
    norm(channels);
    pointwise(channels, 3 * channels);
    pointwise(channels, channels);
    const double pixels = static_cast<double>(height_ * width_);
    work_.flops += 2 * kMultiplyAdd * static_cast<double>(frames_ * channels) * pixels * pixels;
    work_.gather_bytes += 2 * static_cast<double>(frames_ * channels * element_) * pixels;
  }

  // The 3x3 convolution of the doubled image runs as four 2x2 ones on the small image.
  void upsample(int64_t in, int64_t out, bool temporal) {
    if (temporal) {
      causal(in, 2 * in, 1);
      frames_ = 2 * frames_ - 1;
      chunk_ *= 2;
    }
    addProduct(4 * in, 4 * out, positions());
    work_.parameters += static_cast<uint64_t>(9 * in * out + out);
    addHalo(in, frames_);
    height_ *= 2;
    width_ *= 2;
    hold(out);
  }

 private:
  double positions() const { return static_cast<double>(frames_ * height_ * width_); }
  void addProduct(int64_t in, int64_t out, double positions) {
    work_.flops += kMultiplyAdd * static_cast<double>(in) * static_cast<double>(out) * positions;
  }
  void addHalo(int64_t channels, int64_t frames) {
    work_.halo_bytes += static_cast<double>(kHaloRows * frames * width_ * channels * element_);
    work_.exchanges += latents_.frames;  // one a chunk, and a chunk is a latent frame
  }
  void hold(int64_t channels) {
    work_.largest_bytes =
        std::max(work_.largest_bytes, static_cast<uint64_t>(chunk_ * height_ * width_ * channels * element_));
  }

  VaeWork work_;
  const stages::wan::LatentShape latents_;
  int64_t frames_;
  int64_t height_;
  int64_t width_;
  int64_t chunk_ = 1;  // frames
  const int64_t element_;
};

}  // namespace

VaeWork vaeWork(const Model& model, const Job& job) {
  const stages::vae::VaeConfig& config = model.vae;
  const auto levels = static_cast<int64_t>(config.dim_mult.size());
  const auto channels = [&](int64_t block) {
    return config.decoder_base_dim * config.dim_mult[static_cast<size_t>(levels - 1 - std::max<int64_t>(block, 0))];
  };
  Walk walk(model, job);
  walk.pointwise(config.z_dim, config.z_dim);
  walk.causal(config.z_dim, channels(-1));
  walk.residual(channels(-1), channels(-1));
  walk.attention(channels(-1));
  walk.residual(channels(-1), channels(-1));
  for (int64_t block = 0; block < levels; ++block) {
    const bool upsamples = block + 1 < levels;
    const int64_t out = channels(block);
    int64_t in = channels(block - 1);
    // Wan 2.1 halves the channels on the way up, Wan 2.2 keeps them.
    if (block > 0 && !config.is_residual) in /= 2;
    for (int64_t i = 0; i <= config.num_res_blocks; ++i, in = out)
      walk.residual(in, out);
    if (!upsamples) continue;
    const bool temporal = config.temporal_downsample[static_cast<size_t>(levels - 2 - block)];
    walk.upsample(out, config.is_residual ? out : out / 2, temporal);
  }
  walk.norm(channels(levels - 1));
  walk.causal(channels(levels - 1), config.out_channels);
  VaeWork work = walk.work();
  work.video_bytes = static_cast<double>(int64_t{job.frames} * job.height * job.width * config.imageChannels() *
                                         static_cast<int64_t>(byteSize(job.dtype)));
  return work;
}

}  // namespace latentd::plan
