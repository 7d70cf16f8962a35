#pragma once

#include <memory>

#include "runtime/base/clock.h"
#include "runtime/media/output.h"
#include "runtime/metrics/component_metrics.h"

namespace latentd::media {

// Another factory's outputs, counted: frames, failures by reason, and how long a file takes after its last frame.
// Owner: the main; `inner` outlives it, `metrics` and `clock` outlive `inner`, whose last `done` counts too.
// Thread: as the inner factory.
// Failure: passed on unchanged.
class MeteredOutputFactory final : public OutputFactory {
 public:
  MeteredOutputFactory(OutputFactory& inner, metrics::EncoderMetrics& metrics, const Clock& clock)
      : inner_(inner), metrics_(metrics), clock_(clock) {}

  StatusOr<std::unique_ptr<Output>> open(const JobId& job, const v1::JobParameters& parameters, Opened opened,
                                         Done done) override;
  void remove(const JobId& job) override { inner_.remove(job); }

 private:
  OutputFactory& inner_;
  metrics::EncoderMetrics& metrics_;
  const Clock& clock_;
};

}  // namespace latentd::media
