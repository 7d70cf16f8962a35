#include "runtime/supervisor/job_validation.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <ratio>
#include <string_view>

#include "runtime/base/status_field.h"
#include "runtime/base/utf8.h"
#include "runtime/config/value.h"
#include "runtime/media/frame_rate.h"
#include "runtime/supervisor/invalid_field.h"
#include "runtime/supervisor/limits.h"

namespace latentd::supervisor {
namespace {

// 0 is "unset" in ModelLimits.
template <class T>
T smallest(T first, T second) {
  if (first == 0 || second == 0) return std::max(first, second);
  return std::min(first, second);
}

uint32_t combine(uint32_t first, uint32_t second) { return second == 0 ? first : std::lcm(first, second); }

void takeMissing(const v1::JobParameters& from, v1::JobParameters& to) {
  if (!to.has_negative_prompt() && from.has_negative_prompt()) to.set_negative_prompt(from.negative_prompt());
  if (!to.has_frames() && from.has_frames()) to.set_frames(from.frames());
  if (!to.has_width() && from.has_width()) to.set_width(from.width());
  if (!to.has_height() && from.has_height()) to.set_height(from.height());
  if (!to.has_steps() && from.has_steps()) to.set_steps(from.steps());
  if (!to.has_guidance_scale() && from.has_guidance_scale()) to.set_guidance_scale(from.guidance_scale());
  if (!to.has_fps() && from.has_fps()) to.set_fps(from.fps());
  if (!to.has_flow_shift() && from.has_flow_shift()) to.set_flow_shift(from.flow_shift());
}

v1::JobParameters toParameters(const config::JobDefaults& defaults) {
  v1::JobParameters parameters;
  if (defaults.frames) parameters.set_frames(*defaults.frames);
  if (defaults.width) parameters.set_width(*defaults.width);
  if (defaults.height) parameters.set_height(*defaults.height);
  if (defaults.steps) parameters.set_steps(*defaults.steps);
  if (defaults.guidance) parameters.set_guidance_scale(*defaults.guidance);
  if (defaults.fps) parameters.set_fps(*defaults.fps);
  if (defaults.flow_shift) parameters.set_flow_shift(*defaults.flow_shift);
  if (defaults.negative_prompt) parameters.set_negative_prompt(*defaults.negative_prompt);
  return parameters;
}

// "112 or 128": the multiples of `step` plus `offset` around `value`, kept inside [first, last].
std::string nearest(uint64_t value, uint64_t step, uint64_t offset, uint64_t last) {
  const uint64_t first = offset == 0 ? step : offset;
  const uint64_t largest = last < first ? first : last - (last - offset) % step;
  if (value <= first) return std::to_string(first);
  if (value >= largest) return std::to_string(largest);
  const uint64_t below = value - (value - offset) % step;
  return fmt::format("{} or {}", std::max(below, first), std::min(below + step, largest));
}

Status checkText(std::string_view field, std::string_view text, uint32_t bytes_max) {
  if (text.size() > bytes_max) {
    return invalidField(field, " has {} bytes: at most {} are valid; shorten it", text.size(), bytes_max);
  }
  if (const size_t nul = text.find('\0'); nul != std::string_view::npos) {
    return invalidField(field, " has a NUL byte at offset {}: remove it", nul);
  }
  if (const auto problem = describeInvalidUtf8(text)) return invalidField(field, " {}", *problem);
  return absl::OkStatus();
}

Status checkPrompt(const v1::JobParameters& parameters, const JobLimits& limits) {
  LATENTD_RETURN_IF_ERROR(checkText("prompt", parameters.prompt(), limits.prompt_bytes_max));
  LATENTD_RETURN_IF_ERROR(checkText("negative_prompt", parameters.negative_prompt(), limits.prompt_bytes_max));
  if (parameters.prompt().find_first_not_of(" \t\r\n\f\v") == std::string::npos) {
    return invalidField("prompt", " is \"\": say what the video shall show, in 1 to {} bytes", limits.prompt_bytes_max);
  }
  return absl::OkStatus();
}

Status checkFrames(uint32_t frames, const JobLimits& limits) {
  const bool in_step = frames % limits.frame_step == 1 % limits.frame_step;
  if (frames >= 1 && frames <= limits.frames_max && in_step) return absl::OkStatus();
  return invalidField("frames", " = {}: must be 1 + a multiple of {}, at most {}; nearest: {}", frames,
                      limits.frame_step, limits.frames_max, nearest(frames, limits.frame_step, 1, limits.frames_max));
}

uint32_t leastHeight(const JobLimits& limits) { return limits.size_multiple * limits.height_shards; }

Status checkSide(std::string_view field, uint32_t value, uint32_t least, const JobLimits& limits) {
  if (value >= least && value % limits.size_multiple == 0) return absl::OkStatus();
  const uint64_t last = std::max<uint64_t>(limits.pixels_max / limits.size_multiple, limits.size_multiple);
  const std::string valid =
      least == limits.size_multiple
          ? fmt::format("a positive multiple of {}", limits.size_multiple)
          : fmt::format("a multiple of {}, at least {} (ranks share it)", limits.size_multiple, least);
  return invalidField(field, " = {}: must be {}; nearest: {}", value, valid,
                      nearest(value, limits.size_multiple, least, last));
}

Status checkSize(uint32_t width, uint32_t height, const JobLimits& limits) {
  LATENTD_RETURN_IF_ERROR(checkSide("width", width, limits.size_multiple, limits));
  LATENTD_RETURN_IF_ERROR(checkSide("height", height, leastHeight(limits), limits));
  const double pixels = static_cast<double>(width) * height;
  if (pixels <= static_cast<double>(limits.pixels_max)) return absl::OkStatus();
  const double scale = std::sqrt(static_cast<double>(limits.pixels_max) / pixels);
  const auto multiple = [&](double side) {
    const auto whole = static_cast<uint32_t>(side);
    return whole - whole % limits.size_multiple;
  };
  // A side that cannot be as small as the shape wants leaves less for the other one.
  uint32_t fit_width = std::max(limits.size_multiple, multiple(width * scale));
  const uint32_t fit_height =
      std::max(leastHeight(limits), std::min(multiple(height * scale), multiple(limits.pixels_max / fit_width)));
  fit_width = std::max(limits.size_multiple, std::min(fit_width, multiple(limits.pixels_max / fit_height)));
  return invalidField("size", " = {}x{}: at most {} pixels; nearest of this shape: {}x{}", width, height,
                      limits.pixels_max, fit_width, fit_height);
}

Status checkSteps(uint32_t steps, const JobLimits& limits) {
  if (steps >= 1 && steps <= limits.steps_max) return absl::OkStatus();
  return invalidField("steps", " = {}: must be 1 to {}; nearest: {}", steps, limits.steps_max,
                      steps == 0 ? 1 : limits.steps_max);
}

Status checkNumbers(const v1::JobParameters& parameters, const JobLimits& limits) {
  const double guidance = parameters.guidance_scale();
  if (!std::isfinite(guidance) || guidance < 0 || guidance > limits.guidance_max) {
    return invalidField("guidance_scale", " = {}: must be a number from 0 to {} (1 or less switches guidance off)",
                        guidance, limits.guidance_max);
  }
  const double fps = parameters.fps();
  if (!(fps >= media::kFrameRateMin && fps <= limits.fps_max)) {
    return invalidField("fps", " = {}: must be a number from {} to {}", fps, media::kFrameRateMin, limits.fps_max);
  }
  const double shift = parameters.flow_shift();
  const bool shift_in_range = shift >= config::kFlowShiftMin && shift <= config::kFlowShiftMax;  // not a NaN either
  if (parameters.has_flow_shift() && !shift_in_range) {
    return invalidField("flow_shift", " = {}: must be a number from {} to {}, for example 3", shift,
                        config::kFlowShiftMin, config::kFlowShiftMax);
  }
  return absl::OkStatus();
}

Status checkFormat(const v1::JobParameters& parameters) {
  if (!v1::OutputFormat_IsValid(parameters.format())) {
    return invalidField("format", " = {}: must be MP4, GIF, Y4M, PNG, NPY or RGB24",
                        static_cast<int>(parameters.format()));
  }
  if (parameters.format() == v1::OUTPUT_FORMAT_GIF && parameters.fps() > media::kGifFrameRateMax) {
    return invalidField("fps", " = {} with format GIF: a gif shows at most {} frames a second", parameters.fps(),
                        media::kGifFrameRateMax);
  }
  if (parameters.float_pixels() && parameters.format() != v1::OUTPUT_FORMAT_NPY) {
    return invalidField("float_pixels", " = true with format {}: only NPY holds float pixels",
                        v1::OutputFormat_Name(parameters.format()).substr(std::string_view("OUTPUT_FORMAT_").size()));
  }
  return absl::OkStatus();
}

Status checkAllPresent(const v1::JobParameters& parameters) {
  const std::vector<std::string> missing = missingParameters(parameters);
  if (missing.empty()) return absl::OkStatus();
  const bool one = missing.size() == 1;
  return atField(invalid("{} {} not given, and neither the topology's defaults nor the model have {}: give {}",
                         fmt::join(missing, ", "), one ? "is" : "are", one ? "one" : "any", one ? "it" : "them"),
                 missing.front());
}

Status checkValues(const v1::JobParameters& parameters, const JobLimits& limits) {
  LATENTD_RETURN_IF_ERROR(checkFrames(parameters.frames(), limits));
  LATENTD_RETURN_IF_ERROR(checkSize(parameters.width(), parameters.height(), limits));
  LATENTD_RETURN_IF_ERROR(checkSteps(parameters.steps(), limits));
  return checkNumbers(parameters, limits);
}

// Shown as it came: it need not be a duration at all.
Status refuseDuration(std::string_view field, const google::protobuf::Duration& duration, std::string_view valid) {
  return invalidField(field, " = {} s and {} ns: must be {}, or absent for the configured one", duration.seconds(),
                      duration.nanos(), valid);
}

// What google/protobuf/duration.proto allows of what is not negative.
constexpr int64_t kDurationSecondsMax = 315576000000;

bool isDuration(const google::protobuf::Duration& duration) {
  return duration.seconds() >= 0 && duration.seconds() <= kDurationSecondsMax && duration.nanos() >= 0 &&
         duration.nanos() < std::nano::den;
}

Status checkDeadline(const google::protobuf::Duration& deadline) {
  if (isDuration(deadline) && (deadline.seconds() > 0 || deadline.nanos() > 0)) return absl::OkStatus();
  return refuseDuration("deadline", deadline, fmt::format("above 0 and at most {} s", kDurationSecondsMax));
}

Status checkStallTimeout(const google::protobuf::Duration& timeout) {
  // A double: the seconds of a duration do not fit in nanoseconds.
  const double seconds = static_cast<double>(timeout.seconds()) + timeout.nanos() / static_cast<double>(std::nano::den);
  const auto limit = [](std::chrono::duration<double> duration) { return duration.count(); };
  if (isDuration(timeout) && seconds >= limit(config::kStallMin) && seconds <= limit(config::kStallMax)) {
    return absl::OkStatus();
  }
  return refuseDuration("stall_timeout", timeout,
                        fmt::format("from {} to {}", config::formatDuration(config::kStallMin),
                                    config::formatDuration(config::kStallMax)));
}

}  // namespace

std::vector<std::string> missingParameters(const v1::JobParameters& parameters) {
  std::vector<std::string> missing;
  if (!parameters.has_frames()) missing.emplace_back("frames");
  if (!parameters.has_width()) missing.emplace_back("width");
  if (!parameters.has_height()) missing.emplace_back("height");
  if (!parameters.has_steps()) missing.emplace_back("steps");
  if (!parameters.has_guidance_scale()) missing.emplace_back("guidance_scale");
  if (!parameters.has_fps()) missing.emplace_back("fps");
  return missing;
}

Status checkDefaults(const JobLimits& limits) {
  v1::JobParameters smallest;
  smallest.set_frames(1);
  smallest.set_width(limits.size_multiple);
  smallest.set_height(leastHeight(limits));
  smallest.set_steps(1);
  smallest.set_guidance_scale(0);
  smallest.set_fps(limits.fps_max);
  v1::JobParameters parameters = limits.defaults;
  takeMissing(smallest, parameters);
  LATENTD_RETURN_IF_ERROR(checkText("negative_prompt", parameters.negative_prompt(), limits.prompt_bytes_max));
  return checkValues(parameters, limits);
}

JobLimits mergeLimits(const std::vector<v1::ModelLimits>& stages, const config::Limits& limits,
                      const config::JobDefaults& defaults) {
  JobLimits merged{.frames_max = limits.frames_max,
                   .pixels_max = limits.pixels_max,
                   .steps_max = limits.steps_max,
                   .guidance_max = limits.guidance_max,
                   .fps_max = limits.fps_max,
                   .prompt_bytes_max = limits.prompt_bytes_max,
                   .defaults = toParameters(defaults)};
  for (const v1::ModelLimits& stage : stages) {
    merged.frame_step = combine(merged.frame_step, stage.frame_step());
    merged.size_multiple = combine(merged.size_multiple, stage.size_multiple());
    merged.height_shards = std::max(merged.height_shards, stage.height_shards());
    merged.frames_max = smallest(merged.frames_max, stage.frames_max());
    merged.pixels_max = smallest(merged.pixels_max, stage.pixels_max());
    merged.steps_max = smallest(merged.steps_max, stage.steps_max());
    merged.guidance_max = smallest(merged.guidance_max, stage.guidance_max());
    merged.fps_max = smallest(merged.fps_max, stage.fps_max());
    merged.prompt_bytes_max = smallest(merged.prompt_bytes_max, stage.prompt_bytes_max());
    takeMissing(stage.defaults(), merged.defaults);
  }
  // Diffusers encodes an empty negative prompt where none is given: guidance needs one.
  if (!merged.defaults.has_negative_prompt()) merged.defaults.set_negative_prompt("");
  return merged;
}

v1::ModelLimits toProto(const JobLimits& limits) {
  v1::ModelLimits proto;
  proto.set_frame_step(limits.frame_step);
  proto.set_size_multiple(limits.size_multiple);
  proto.set_height_shards(limits.height_shards);
  proto.set_frames_max(limits.frames_max);
  proto.set_pixels_max(limits.pixels_max);
  proto.set_steps_max(limits.steps_max);
  proto.set_prompt_bytes_max(limits.prompt_bytes_max);
  proto.set_guidance_max(limits.guidance_max);
  proto.set_fps_max(limits.fps_max);
  proto.set_flow_shift_min(config::kFlowShiftMin);
  proto.set_flow_shift_max(config::kFlowShiftMax);
  *proto.mutable_defaults() = limits.defaults;
  return proto;
}

StatusOr<v1::JobParameters> effectiveParameters(const v1::JobParameters& requested, const JobLimits& limits,
                                                uint64_t random_seed) {
  v1::JobParameters effective = requested;
  takeMissing(limits.defaults, effective);
  if (!effective.has_seed()) effective.set_seed(random_seed);
  if (effective.format() == v1::OUTPUT_FORMAT_UNSPECIFIED) effective.set_format(v1::OUTPUT_FORMAT_MP4);
  LATENTD_RETURN_IF_ERROR(checkPrompt(effective, limits));
  LATENTD_RETURN_IF_ERROR(checkAllPresent(effective));
  LATENTD_RETURN_IF_ERROR(checkValues(effective, limits));
  LATENTD_RETURN_IF_ERROR(checkFormat(effective));
  return effective;
}

Status validateSubmission(const v1::SubmitRequest& request) {
  if (request.priority() < -kPriorityMax || request.priority() > kPriorityMax) {
    return invalidField("priority", " = {}: must be {} to {}; nearest: {}", request.priority(), -kPriorityMax,
                        kPriorityMax, std::clamp(request.priority(), -kPriorityMax, kPriorityMax));
  }
  if (request.retries() > kRetriesMax) {
    return invalidField("retries", " = {}: must be 0 to {}", request.retries(), kRetriesMax);
  }
  if (request.has_deadline()) LATENTD_RETURN_IF_ERROR(checkDeadline(request.deadline()));
  if (request.has_stall_timeout()) LATENTD_RETURN_IF_ERROR(checkStallTimeout(request.stall_timeout()));
  return checkText("request_id", request.request_id(), kRequestIdBytesMax);
}

}  // namespace latentd::supervisor
