#include "runtime/media/metered_outputs.h"

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "tests/support/catch.h"
#include "tests/support/manual_clock.h"

namespace latentd::media {
namespace {

// Outputs that end when the test says so.
class ManualOutputs final : public OutputFactory {
 public:
  class ManualOutput final : public Output {
   public:
    int ringFd() const override { return 7; }
    uint64_t ringId() const override { return 9; }
    void finish() override {}
    void abort(const Status&) override {}
  };

  StatusOr<std::unique_ptr<Output>> open(const JobId& job, const v1::JobParameters&, Opened opened,
                                         Done done) override {
    if (job == "refused") return absl::UnavailableError("no encoder runs here");
    opened_[job] = std::move(opened);
    done_[job] = std::move(done);
    return std::unique_ptr<Output>(std::make_unique<ManualOutput>());
  }
  void remove(const JobId& job) override { removed_ = job; }

  std::map<JobId, Opened> opened_;
  std::map<JobId, Done> done_;
  JobId removed_;
};

struct Fixture {
  testing::ManualClock clock;
  metrics::Registry registry;
  metrics::EncoderMetrics metrics{registry};
  ManualOutputs inner;
  MeteredOutputFactory outputs{inner, metrics, clock};
  int opened = 0;
  Status last = absl::UnknownError("not called");

  StatusOr<std::unique_ptr<Output>> open(const JobId& job) {
    v1::JobParameters parameters;
    parameters.set_format(v1::OUTPUT_FORMAT_GIF);
    return outputs.open(
        job, parameters, [this](const Status& status) { opened += status.ok() ? 1 : 0; },
        [this](StatusOr<OutputResult> result) { last = result.status(); });
  }
};

}  // namespace

TEST_CASE("metered outputs: a result counts its frames and the time since its last one", "[media]") {
  Fixture fixture;
  auto output = fixture.open("a");
  REQUIRE(output.ok());
  fixture.inner.opened_["a"](absl::OkStatus());
  CHECK(fixture.opened == 1);
  CHECK((*output)->ringFd() == 7);
  CHECK((*output)->ringId() == 9);
  fixture.clock.advance(std::chrono::seconds(100));
  (*output)->finish();
  fixture.clock.advance(std::chrono::seconds(3));
  output->reset();
  fixture.inner.done_["a"](OutputResult{.path = "a.gif", .bytes = 10, .frames = 17});
  CHECK(fixture.last.ok());
  CHECK(fixture.metrics.frames.Value() == 17);
  const std::string text = fixture.registry.expose();
  CHECK(text.find("latentd_encode_seconds_sum{format=\"gif\"} 3\n") != std::string::npos);
}

TEST_CASE("metered outputs: failures count by code, but not what was aborted or got no frames", "[media]") {
  Fixture fixture;
  const auto failing = fixture.open("b");
  const auto cancelled = fixture.open("c");
  fixture.inner.done_["b"](absl::UnavailableError("the encoder died"));
  CHECK(absl::IsUnavailable(fixture.last));
  (*cancelled)->abort(absl::CancelledError("the job was cancelled"));
  fixture.inner.done_["c"](absl::CancelledError("the job was cancelled"));
  const auto late = fixture.open("d");
  (*late)->abort(absl::DeadlineExceededError("the job did not reach its last stage"));
  fixture.inner.done_["d"](absl::DeadlineExceededError("the job did not reach its last stage"));
  const auto starved = fixture.open("e");
  fixture.inner.done_["e"](markFramesMissing(absl::UnavailableError("frame ring: the process of its writer died")));
  CHECK(absl::IsUnavailable(fixture.last));
  const auto without_room = fixture.open("f");
  fixture.inner.opened_["f"](absl::ResourceExhaustedError("the spool is full"));
  CHECK(fixture.opened == 0);
  CHECK(absl::IsUnavailable(fixture.open("refused").status()));
  CHECK(fixture.metrics.failures.with("UNAVAILABLE").Value() == 2);
  CHECK(fixture.metrics.failures.with("CANCELLED").Value() == 0);
  CHECK(fixture.metrics.failures.with("DEADLINE_EXCEEDED").Value() == 0);
  CHECK(fixture.metrics.failures.with("RESOURCE_EXHAUSTED").Value() == 1);
  fixture.outputs.remove("b");
  CHECK(fixture.inner.removed_ == "b");
}

}  // namespace latentd::media
