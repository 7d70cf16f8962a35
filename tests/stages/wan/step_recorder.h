#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "stages/stage.h"

namespace latentd::stages::testing {

// Notes the steps of a job, and can cancel it. Owner: the test. Thread: the caller of run().
class StepRecorder final : public RunContext {
 public:
  explicit StepRecorder(std::optional<uint32_t> cancel_before = std::nullopt) : cancel_before_(cancel_before) {}

  Status beginStep(uint32_t step, uint32_t) override {
    if (step == cancel_before_) return absl::CancelledError("by the test");
    begun_.push_back(step);
    return absl::OkStatus();
  }
  void nearEnd() override { near_end_after_ = begun_.size(); }
  void finishStep(uint32_t step, uint32_t) override { finished_.push_back(step); }
  FrameSink* frames() override { return nullptr; }

  const std::vector<uint32_t>& begun() const { return begun_; }
  const std::vector<uint32_t>& finished() const { return finished_; }
  // The steps that were begun when the end was near.
  std::optional<size_t> nearEndAfter() const { return near_end_after_; }

 private:
  std::optional<uint32_t> cancel_before_;
  std::vector<uint32_t> begun_;
  std::vector<uint32_t> finished_;
  std::optional<size_t> near_end_after_;
};

}  // namespace latentd::stages::testing
