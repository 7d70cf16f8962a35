#include "runtime/media/output_factory.h"

#include <algorithm>
#include <array>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/log.h"
#include "runtime/base/shm_region.h"
#include "runtime/media/frame_rate.h"
#include "runtime/media/raw_writer.h"

namespace latentd::media {
namespace {

// The ring evens out a decoder that emits chunks of frames: one chunk of 16 fits where frames are small, and two
// frames, the fewest that let both sides work at once, where they are huge.
constexpr uint64_t kRingBytesAimed = uint64_t{64} << 20;
constexpr uint64_t kRingFramesMin = 2;
constexpr uint64_t kRingFramesMax = 16;

// For what runs when the factory is destroyed: everything was told to stop, so only a disk that hangs takes longer.
constexpr std::chrono::seconds kStopDeadline{30};

struct FormatTraits {
  v1::OutputFormat format;
  const char* extension;
  std::optional<RawFormat> raw;  // absent: latent-encoder does it, under the extension as name
};

constexpr std::array<FormatTraits, 6> kFormats{{{v1::OUTPUT_FORMAT_MP4, "mp4", {}},
                                                {v1::OUTPUT_FORMAT_GIF, "gif", {}},
                                                {v1::OUTPUT_FORMAT_PNG, "png", {}},
                                                {v1::OUTPUT_FORMAT_Y4M, "y4m", RawFormat::kY4m},
                                                {v1::OUTPUT_FORMAT_NPY, "npy", RawFormat::kNpy},
                                                {v1::OUTPUT_FORMAT_RGB24, "rgb", RawFormat::kRgb24}}};

StatusOr<FormatTraits> traitsOf(v1::OutputFormat format) {
  if (format == v1::OUTPUT_FORMAT_UNSPECIFIED) format = v1::OUTPUT_FORMAT_MP4;
  const auto traits =
      std::find_if(kFormats.begin(), kFormats.end(), [&](const FormatTraits& known) { return known.format == format; });
  if (traits != kFormats.end()) return *traits;
  return absl::InvalidArgumentError("format: " + std::to_string(format) + " is none of MP4, GIF, PNG, Y4M, NPY, RGB24");
}

StatusOr<VideoSpec> specOf(const v1::JobParameters& parameters, const FormatTraits& traits) {
  VideoSpec spec;
  spec.width = parameters.width();
  spec.height = parameters.height();
  spec.frames = parameters.frames();
  if (parameters.float_pixels()) spec.format = PixelFormat::kRgbF32;
  if (spec.format != PixelFormat::kRgb8 && traits.raw != RawFormat::kNpy) {
    return absl::InvalidArgumentError("float_pixels: only NPY holds floats; ask for NPY, or for 8-bit pixels");
  }
  if (spec.frames == 0) return absl::InvalidArgumentError("frames: 0 is no video; give 1 or more");
  LATENTD_ASSIGN_OR_RETURN(spec.rate, toFrameRate(parameters.fps()));
  return spec;
}

StatusOr<std::shared_ptr<FrameRing>> makeRing(const VideoSpec& spec) {
  FrameGeometry geometry{spec.width, spec.height, spec.format, 1};
  const uint64_t bytes = std::max<uint64_t>(1, frameBytes(geometry));
  const uint64_t fitting = std::clamp(kRingBytesAimed / bytes, kRingFramesMin, kRingFramesMax);
  geometry.capacity = static_cast<uint32_t>(std::min<uint64_t>(fitting, spec.frames));
  LATENTD_ASSIGN_OR_RETURN(FrameRing ring, FrameRing::create(geometry));
  return std::make_shared<FrameRing>(std::move(ring));
}

StatusOr<OutputTask::Backend> makeRawBackend(RawFormat format, const VideoSpec& spec, const FrameRing& ring,
                                             const SpoolFile& file) {
  LATENTD_ASSIGN_OR_RETURN(UniqueFd copy, duplicateFd(file.fd()));
  LATENTD_ASSIGN_OR_RETURN(std::unique_ptr<FrameWriter> writer,
                           makeRawWriter(format, spec, std::move(copy), file.path()));
  LATENTD_ASSIGN_OR_RETURN(FrameRingReader reader, FrameRingReader::attach(ring));
  return OutputTask::RawBackend{std::move(reader), std::move(writer)};
}

}  // namespace

// A ring that the media thread makes and the supervisor's loop uses. Owner: both. Thread: any.
class SpoolOutputFactory::SharedRing {
 public:
  void set(std::shared_ptr<FrameRing> ring) {
    const MutexLock lock(mutex_);
    ring_ = std::move(ring);
  }
  // Null: not made yet.
  std::shared_ptr<FrameRing> get() const {
    const MutexLock lock(mutex_);
    return ring_;
  }
  // `done` was called, or will not be.
  void end() { ended_.store(true, std::memory_order_release); }
  bool ended() const { return ended_.load(std::memory_order_acquire); }

 private:
  mutable Mutex mutex_;
  std::shared_ptr<FrameRing> ring_ GUARDED_BY(mutex_);
  std::atomic<bool> ended_{false};
};

struct SpoolOutputFactory::Order {
  JobId job;
  FormatTraits traits;
  VideoSpec spec;
  Gate::Pass pass;
  std::shared_ptr<SharedRing> ring;
  Opened opened;
  Done done;
};

struct SpoolOutputFactory::Parts {
  std::shared_ptr<FrameRing> ring;
  SpoolFile file;
  OutputTask::Backend backend;
};

// What the supervisor holds. It finds its task by the ring's id: the task may be gone. The loop does what it is told in
// order, so that the task is there whenever it is looked for before its end.
class SpoolOutputFactory::Handle final : public Output {
 public:
  Handle(SpoolOutputFactory& factory, std::shared_ptr<const SharedRing> ring, uint64_t id)
      : factory_(factory), ring_(std::move(ring)), id_(id) {}

  ~Handle() override {
    // Nothing is left to abort: a finished job does not wait for the media thread.
    if (ring_->ended()) return;
    const Status reason = absl::CancelledError("the output was given up");
    EventLoop& loop = factory_.loop_thread_.loop();
    loop.runAndWait([&] { factory_.withTask(id_, [&](OutputTask& task) { task.fail(reason); }); });
  }

  uint64_t ringId() const override { return id_; }

  int ringFd() const override {
    const std::shared_ptr<FrameRing> ring = ring_->get();
    LATENTD_CHECK(ring != nullptr, "a ring's descriptor is asked for once it was opened");
    return ring->fd();
  }

  void finish() override {
    post([](OutputTask& task) { task.finish(); });
  }

  void abort(const Status& reason) override {
    // At once: the worker may be blocked on it.
    if (const std::shared_ptr<FrameRing> ring = ring_->get()) ring->abort(reason);
    post([reason](OutputTask& task) { task.fail(reason); });
  }

 private:
  void post(std::function<void(OutputTask&)> action) {
    const bool runs = factory_.loop_thread_.loop().post(
        [&factory = factory_, id = id_, action = std::move(action)] { factory.withTask(id, action); });
    LATENTD_CHECK(runs, "an output dies before its factory");
  }

  SpoolOutputFactory& factory_;
  const std::shared_ptr<const SharedRing> ring_;
  const uint64_t id_;
};

SpoolOutputFactory::SpoolOutputFactory(Options options, std::unique_ptr<Spool> spool, ChildSpawner& spawner,
                                       const Clock& clock)
    : options_(std::move(options)), spool_(std::move(spool)), spawner_(spawner), loop_thread_(clock, "media") {}

StatusOr<std::unique_ptr<SpoolOutputFactory>> SpoolOutputFactory::create(Options options, ChildSpawner& spawner,
                                                                         const Clock& clock) {
  LATENTD_ASSIGN_OR_RETURN(std::unique_ptr<Spool> spool, Spool::open(options.spool, clock));
  std::unique_ptr<SpoolOutputFactory> factory(
      new SpoolOutputFactory(std::move(options), std::move(spool), spawner, clock));
  factory->probeEncoder();
  return factory;
}

SpoolOutputFactory::~SpoolOutputFactory() {
  const Status reason = absl::UnavailableError("the daemon ends");
  EventLoop& loop = loop_thread_.loop();
  gate_.close();
  loop.runAndWait([&] {
    for (auto& [id, running] : running_)
      running.task->fail(reason);
  });
  LATENTD_CHECK(gate_.waitEmpty(std::chrono::steady_clock::now() + kStopDeadline),
                "an output's file system hangs; its thread cannot end");
  loop.runAndWait([&] {
    probe_.reset();
    if (expiry_) loop.cancelTimer(*expiry_);
  });
}

void SpoolOutputFactory::probeEncoder() {
  StatusOr<std::unique_ptr<EncoderProcess>> probe = EncoderProcess::start(spawner_, options_.encoder, {"--check"}, {});
  const auto tell = [this](const Status& status) {
    if (!status.ok()) getLogger("media")->warn("mp4, gif and png are not served: {}", messageOf(status));
    const MutexLock lock(mutex_);
    encoder_status_ = status;
  };
  if (!probe.ok()) return tell(probe.status());
  loop_thread_.loop().runAndWait([&] {
    probe_ = *std::move(probe);
    const Status watched = probe_->watch(loop_thread_.loop(), [this, tell](const Status& status) {
      tell(absl::IsInternal(status) ? absl::UnavailableError(messageOf(status)) : status);
      loop_thread_.loop().post([this] { probe_.reset(); });
    });
    if (!watched.ok()) tell(watched);
  });
}

Status SpoolOutputFactory::encoderStatus() {
  const MutexLock lock(mutex_);
  return encoder_status_;
}

StatusOr<OutputTask::Backend> SpoolOutputFactory::startEncoder(const char* format, const VideoSpec& spec,
                                                               const FrameRing& ring, const SpoolFile& file) {
  return EncoderProcess::start(
      spawner_, options_.encoder,
      {"--ring-fd", "3", "--output-fd", "4", "--format", format, "--fps", toString(spec.rate), "--frames",
       std::to_string(spec.frames), "--bytes-max", std::to_string(spool_->bytesMax())},
      {ring.fd(), file.fd()});
}

StatusOr<std::unique_ptr<Output>> SpoolOutputFactory::open(const JobId& job, const v1::JobParameters& parameters,
                                                           Opened opened, Done done) {
  LATENTD_ASSIGN_OR_RETURN(const FormatTraits traits, traitsOf(parameters.format()));
  LATENTD_ASSIGN_OR_RETURN(const VideoSpec spec, specOf(parameters, traits));
  if (!traits.raw) LATENTD_RETURN_IF_ERROR(encoderStatus());
  std::optional<Gate::Pass> pass = gate_.enter();
  if (!pass) return absl::UnavailableError("the daemon ends");
  const uint64_t id = next_ring_id_.fetch_add(1);
  const auto ring = std::make_shared<SharedRing>();
  Done told = [ring, done = std::move(done)](StatusOr<OutputResult> result) {
    ring->end();
    done(std::move(result));
  };
  const auto order = std::make_shared<Order>(
      Order{job, traits, spec, *std::move(pass), ring, std::move(opened), std::move(told)});  // a task can be copied
  const bool runs = loop_thread_.loop().post([this, id, order] { begin(id, std::move(*order)); });
  LATENTD_CHECK(runs, "the factory's loop ends with it");
  return std::make_unique<Handle>(*this, ring, id);
}

StatusOr<SpoolOutputFactory::Parts> SpoolOutputFactory::makeParts(const Order& order) {
  const std::optional<RawFormat> raw = order.traits.raw;
  LATENTD_ASSIGN_OR_RETURN(std::shared_ptr<FrameRing> ring, makeRing(order.spec));
  const uint64_t bytes = raw ? rawFileBytes(*raw, order.spec) : 0;
  LATENTD_ASSIGN_OR_RETURN(SpoolFile file, spool_->create(order.job, order.traits.extension, bytes));
  LATENTD_ASSIGN_OR_RETURN(OutputTask::Backend backend,
                           raw ? makeRawBackend(*raw, order.spec, *ring, file)
                               : startEncoder(order.traits.extension, order.spec, *ring, file));
  return Parts{std::move(ring), std::move(file), std::move(backend)};
}

void SpoolOutputFactory::begin(uint64_t id, Order order) {
  StatusOr<Parts> parts = makeParts(order);
  if (!parts.ok()) {
    order.ring->end();
    return order.opened(parts.status());
  }
  OutputTask::Deps deps{loop_thread_.loop(),
                        raw_threads_,
                        *spool_,
                        options_.encode_deadline,
                        [this] { armExpiry(); },
                        [this, id] { loop_thread_.loop().post([this, id] { running_.erase(id); }); }};
  order.ring->set(parts->ring);
  auto task = std::make_unique<OutputTask>(std::move(deps), std::move(parts->ring), std::move(parts->file),
                                           std::move(order.done));
  const auto placed = running_.emplace(id, Running{std::move(task), std::move(order.pass)}).first;
  order.opened(absl::OkStatus());
  placed->second.task->run(std::move(parts->backend));
}

void SpoolOutputFactory::remove(const JobId& job) { spool_->remove(job); }

void SpoolOutputFactory::withTask(uint64_t id, const std::function<void(OutputTask&)>& action) {
  if (const auto running = running_.find(id); running != running_.end()) action(*running->second.task);
}

// A result goes on time even when nothing else happens.
void SpoolOutputFactory::armExpiry() {
  EventLoop& loop = loop_thread_.loop();
  if (expiry_) loop.cancelTimer(*std::exchange(expiry_, std::nullopt));
  if (const std::optional<Clock::TimePoint> next = spool_->expire()) {
    expiry_ = loop.addTimer(*next, [this] {
      expiry_.reset();
      armExpiry();
    });
  }
}

}  // namespace latentd::media
