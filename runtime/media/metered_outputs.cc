#include "runtime/media/metered_outputs.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <utility>

namespace latentd::media {
namespace {

using FinishTime = std::atomic<Clock::Duration::rep>;

// "OUTPUT_FORMAT_MP4" -> "mp4".
std::string formatLabel(v1::OutputFormat format) {
  constexpr std::string_view kPrefix = "OUTPUT_FORMAT_";
  std::string name = v1::OutputFormat_Name(format);
  if (name.rfind(kPrefix, 0) == 0) name.erase(0, kPrefix.size());
  for (char& c : name) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return name;
}

// The inner output, which also remembers when its last frame was there.
class MeteredOutput final : public Output {
 public:
  // finish_time: owned by this and by the inner factory's `done`, either of which may go first.
  MeteredOutput(std::unique_ptr<Output> inner, std::shared_ptr<FinishTime> finish_time, const Clock& clock)
      : inner_(std::move(inner)), finish_time_(std::move(finish_time)), clock_(clock) {}

  int ringFd() const override { return inner_->ringFd(); }
  uint64_t ringId() const override { return inner_->ringId(); }
  void finish() override {
    finish_time_->store(clock_.now().time_since_epoch().count());
    inner_->finish();
  }
  void abort(const Status& reason) override { inner_->abort(reason); }

 private:
  const std::unique_ptr<Output> inner_;
  const std::shared_ptr<FinishTime> finish_time_;
  const Clock& clock_;
};

}  // namespace

StatusOr<std::unique_ptr<Output>> MeteredOutputFactory::open(const JobId& job, const v1::JobParameters& parameters,
                                                             Done done) {
  const auto finish_time = std::make_shared<FinishTime>(0);
  const auto counted = [&metrics = metrics_, &clock = clock_, finish_time, format = formatLabel(parameters.format()),
                        done = std::move(done)](StatusOr<OutputResult> result) {
    if (result.ok()) {
      const Clock::Duration finished(finish_time->load());
      const std::chrono::duration<double> elapsed = clock.now().time_since_epoch() - finished;
      metrics.encode.with(format).Observe(elapsed.count());
      metrics.frames.Increment(result->frames);
    } else if (result.status().code() != absl::StatusCode::kCancelled) {
      metrics.failures.with(absl::StatusCodeToString(result.status().code())).Increment();
    }
    done(std::move(result));
  };
  StatusOr<std::unique_ptr<Output>> output = inner_.open(job, parameters, counted);
  if (!output.ok()) {
    metrics_.failures.with(absl::StatusCodeToString(output.status().code())).Increment();
    return output.status();
  }
  return std::unique_ptr<Output>(std::make_unique<MeteredOutput>(*std::move(output), finish_time, clock_));
}

}  // namespace latentd::media
