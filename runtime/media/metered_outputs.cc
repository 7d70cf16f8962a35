#include "runtime/media/metered_outputs.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <utility>

namespace latentd::media {
namespace {

// Of one output; whoever tells its end may outlive its handle, or the other way round.
struct Course {
  std::atomic<Clock::Duration::rep> finish_time{0};
  std::atomic<bool> aborted{false};  // from outside: its end is somebody else's failure
};

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

// The inner output, which also remembers when its last frame was there, and whether it was aborted.
class MeteredOutput final : public Output {
 public:
  // course: owned by this and by the inner factory's `done`, either of which may go first.
  MeteredOutput(std::unique_ptr<Output> inner, std::shared_ptr<Course> course, const Clock& clock)
      : inner_(std::move(inner)), course_(std::move(course)), clock_(clock) {}

  int ringFd() const override { return inner_->ringFd(); }
  uint64_t ringId() const override { return inner_->ringId(); }
  void finish() override {
    course_->finish_time.store(clock_.now().time_since_epoch().count());
    inner_->finish();
  }
  void abort(const Status& reason) override {
    course_->aborted.store(true);
    inner_->abort(reason);
  }

 private:
  const std::unique_ptr<Output> inner_;
  const std::shared_ptr<Course> course_;
  const Clock& clock_;
};

}  // namespace

StatusOr<std::unique_ptr<Output>> MeteredOutputFactory::open(const JobId& job, const v1::JobParameters& parameters,
                                                             Opened opened, Done done) {
  const auto course = std::make_shared<Course>();
  const auto counted = [&metrics = metrics_, &clock = clock_, course, format = formatLabel(parameters.format()),
                        done = std::move(done)](StatusOr<OutputResult> result) {
    if (result.ok()) {
      const Clock::Duration finished(course->finish_time.load());
      const std::chrono::duration<double> elapsed = clock.now().time_since_epoch() - finished;
      metrics.encode.with(format).Observe(elapsed.count());
      metrics.frames.Increment(result->frames);
    } else if (!course->aborted.load() && !isFramesMissing(result.status())) {
      metrics.failures.with(absl::StatusCodeToString(result.status().code())).Increment();
    }
    done(std::move(result));
  };
  const auto count_failure = [&metrics = metrics_](const Status& status) {
    if (!status.ok()) metrics.failures.with(absl::StatusCodeToString(status.code())).Increment();
  };
  const auto told = [count_failure, opened = std::move(opened)](const Status& status) {
    count_failure(status);
    opened(status);
  };
  StatusOr<std::unique_ptr<Output>> output = inner_.open(job, parameters, told, counted);
  count_failure(output.status());
  LATENTD_RETURN_IF_ERROR(output.status());
  return std::unique_ptr<Output>(std::make_unique<MeteredOutput>(*std::move(output), course, clock_));
}

}  // namespace latentd::media
