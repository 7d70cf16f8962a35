#include "runtime/supervisor/job_validation.h"

#include <cmath>
#include <limits>

#include "runtime/base/status_field.h"
#include "tests/support/catch.h"

namespace latentd::supervisor {
namespace {

JobLimits demoLimits() {
  JobLimits limits;
  limits.frame_step = 4;
  limits.size_multiple = 16;
  limits.frames_max = 81;
  limits.pixels_max = 512 * 512;
  limits.steps_max = 100;
  limits.guidance_max = 30;
  limits.fps_max = 120;
  limits.prompt_bytes_max = 512;
  limits.defaults.set_frames(17);
  limits.defaults.set_width(128);
  limits.defaults.set_height(128);
  limits.defaults.set_steps(16);
  limits.defaults.set_guidance_scale(2.5);
  limits.defaults.set_fps(8);
  limits.defaults.set_negative_prompt("");
  return limits;
}

v1::JobParameters prompt(const std::string& text = "a red ball") {
  v1::JobParameters parameters;
  parameters.set_prompt(text);
  return parameters;
}

std::string refusal(const v1::JobParameters& parameters) {
  const auto result = effectiveParameters(parameters, demoLimits(), 7);
  REQUIRE(!result.ok());
  CHECK(result.status().code() == absl::StatusCode::kInvalidArgument);
  return messageOf(result.status());
}

bool names(const std::string& message, std::initializer_list<const char*> parts) {
  for (const char* part : parts) {
    if (message.find(part) == std::string::npos) return false;
  }
  return true;
}

TEST_CASE("job_validation: defaults are filled in and echoed", "[supervisor]") {
  const auto effective = effectiveParameters(prompt(), demoLimits(), 7);
  REQUIRE(effective.ok());
  CHECK(effective->frames() == 17);
  CHECK(effective->width() == 128);
  CHECK(effective->height() == 128);
  CHECK(effective->steps() == 16);
  CHECK(effective->guidance_scale() == 2.5);
  CHECK(effective->fps() == 8);
  CHECK(effective->seed() == 7);
  CHECK(effective->has_negative_prompt());
  CHECK(effective->format() == v1::OUTPUT_FORMAT_MP4);
  CHECK(!effective->has_flow_shift());
}

TEST_CASE("job_validation: what is given wins over defaults, a seed of 0 too", "[supervisor]") {
  v1::JobParameters parameters = prompt();
  parameters.set_seed(0);
  parameters.set_frames(81);
  parameters.set_guidance_scale(0);
  const auto effective = effectiveParameters(parameters, demoLimits(), 7);
  REQUIRE(effective.ok());
  CHECK(effective->seed() == 0);
  CHECK(effective->frames() == 81);
  CHECK(effective->guidance_scale() == 0);
}

TEST_CASE("job_validation: frames name the nearest valid counts", "[supervisor]") {
  const auto refuse = [](uint32_t frames) {
    v1::JobParameters parameters = prompt();
    parameters.set_frames(frames);
    return refusal(parameters);
  };
  CHECK(names(refuse(0), {"frames = 0", "nearest: 1"}));
  CHECK(names(refuse(16), {"frames = 16", "multiple of 4", "nearest: 13 or 17"}));
  CHECK(names(refuse(84), {"frames = 84", "nearest: 81"}));
  CHECK(names(refuse(1000000000), {"frames = 1000000000", "at most 81", "nearest: 81"}));
  for (const uint32_t valid : {1U, 5U, 77U, 81U}) {
    v1::JobParameters parameters = prompt();
    parameters.set_frames(valid);
    CHECK(effectiveParameters(parameters, demoLimits(), 7).ok());
  }
}

TEST_CASE("job_validation: sizes name the side and the nearest valid ones", "[supervisor]") {
  const auto refuse = [](uint32_t width, uint32_t height) {
    v1::JobParameters parameters = prompt();
    parameters.set_width(width);
    parameters.set_height(height);
    return refusal(parameters);
  };
  CHECK(names(refuse(0, 0), {"width = 0", "nearest: 16"}));
  CHECK(names(refuse(127, 129), {"width = 127", "multiple of 16", "112 or 128"}));
  CHECK(names(refuse(128, 129), {"height = 129", "128 or 144"}));
  CHECK(names(refuse(1000000, 1000000), {"size = 1000000x1000000", "at most 262144 pixels", "512x512"}));
  CHECK(names(refuse(1024, 512), {"size = 1024x512", "720x352"}));
  CHECK(names(refuse(UINT32_MAX, 16), {"width = 4294967295"}));
}

TEST_CASE("job_validation: steps, guidance, fps and flow shift are bounded and finite", "[supervisor]") {
  const auto refuse = [](auto set) {
    v1::JobParameters parameters = prompt();
    set(parameters);
    return refusal(parameters);
  };
  CHECK(names(refuse([](auto& p) { p.set_steps(0); }), {"steps = 0", "nearest: 1"}));
  CHECK(names(refuse([](auto& p) { p.set_steps(1000000); }), {"steps = 1000000", "nearest: 100"}));
  CHECK(names(refuse([](auto& p) { p.set_guidance_scale(std::nan("")); }), {"guidance_scale = nan", "0 to 30"}));
  CHECK(names(refuse([](auto& p) { p.set_guidance_scale(-1); }), {"guidance_scale = -1"}));
  CHECK(names(refuse([](auto& p) { p.set_guidance_scale(31); }), {"guidance_scale = 31"}));
  CHECK(names(refuse([](auto& p) { p.set_fps(0); }), {"fps = 0", "0.01 to 120"}));
  CHECK(names(refuse([](auto& p) { p.set_fps(0.001); }), {"fps = 0.001"}));
  CHECK(names(refuse([](auto& p) { p.set_fps(std::nan("")); }), {"fps = nan"}));
  CHECK(names(refuse([](auto& p) { p.set_fps(std::numeric_limits<double>::infinity()); }), {"fps = inf"}));
  CHECK(names(refuse([](auto& p) { p.set_flow_shift(0); }), {"flow_shift = 0", "0.01 to 100"}));
  CHECK(names(refuse([](auto& p) { p.set_flow_shift(1000); }), {"flow_shift = 1000", "0.01 to 100"}));
}

TEST_CASE("job_validation: a gif shows at most a hundred frames a second", "[supervisor]") {
  v1::JobParameters gif = prompt();
  gif.set_format(v1::OUTPUT_FORMAT_GIF);
  gif.set_fps(100);
  CHECK(effectiveParameters(gif, demoLimits(), 7).ok());
  gif.set_fps(100.5);
  CHECK(names(refusal(gif), {"fps = 100.5 with format GIF", "at most 100"}));
  gif.set_format(v1::OUTPUT_FORMAT_MP4);
  CHECK(effectiveParameters(gif, demoLimits(), 7).ok());
}

TEST_CASE("job_validation: prompts are text of bounded length", "[supervisor]") {
  CHECK(names(refusal(prompt("")), {"prompt is \"\"", "1 to 512 bytes"}));
  CHECK(names(refusal(prompt(" \t\n")), {"prompt"}));
  CHECK(names(refusal(prompt(std::string(100000, 'x'))), {"prompt has 100000 bytes", "at most 512"}));
  CHECK(names(refusal(prompt(std::string("a\0b", 3))), {"NUL", "offset 1"}));
  CHECK(names(refusal(prompt("ab\xff")), {"not UTF-8", "0xff", "offset 2"}));
  v1::JobParameters negative = prompt();
  negative.set_negative_prompt("\xc3");
  CHECK(names(refusal(negative), {"negative_prompt is not UTF-8"}));
  CHECK(effectiveParameters(prompt("ein gr\xc3\xbcner W\xc3\xbcrfel \xf0\x9f\x8e\xb2"), demoLimits(), 7).ok());
}

TEST_CASE("job_validation: formats and what belongs to them", "[supervisor]") {
  v1::JobParameters parameters = prompt();
  parameters.set_float_pixels(true);
  CHECK(names(refusal(parameters), {"float_pixels", "MP4", "NPY"}));
  parameters.set_format(v1::OUTPUT_FORMAT_NPY);
  CHECK(effectiveParameters(parameters, demoLimits(), 7).ok());
  parameters.set_format(static_cast<v1::OutputFormat>(99));
  CHECK(names(refusal(parameters), {"format = 99", "MP4"}));
}

TEST_CASE("job_validation: a parameter that nobody has a default for is asked for", "[supervisor]") {
  JobLimits limits = demoLimits();
  limits.defaults.clear_fps();
  const auto result = effectiveParameters(prompt(), limits, 7);
  REQUIRE(!result.ok());
  CHECK(names(messageOf(result.status()), {"fps is not given"}));
  limits.defaults.clear_frames();
  limits.defaults.clear_height();
  CHECK(names(messageOf(effectiveParameters(prompt(), limits, 7).status()), {"frames, height, fps are not given"}));
  // What is there is checked all the same.
  CHECK(checkDefaults(limits).ok());
  limits.defaults.set_width(33);
  const Status refused = checkDefaults(limits);
  CHECK(names(messageOf(refused), {"width = 33"}));
  CHECK(fieldOf(refused) == "width");
}

TEST_CASE("job_validation: the fields beside the parameters", "[supervisor]") {
  v1::SubmitRequest request;
  CHECK(validateSubmission(request).ok());
  request.set_priority(101);
  CHECK(names(messageOf(validateSubmission(request)), {"priority = 101", "nearest: 100"}));
  request.set_priority(-100);
  request.set_retries(2);
  CHECK(names(messageOf(validateSubmission(request)), {"retries = 2", "0 to 1"}));
  request.set_retries(1);
  request.mutable_deadline()->set_seconds(0);
  CHECK(names(messageOf(validateSubmission(request)), {"deadline", "above 0", "315576000000 s"}));
  request.mutable_deadline()->set_seconds(1'000'000'000'000);
  CHECK(names(messageOf(validateSubmission(request)), {"deadline = 1000000000000 s", "315576000000 s"}));
  request.mutable_deadline()->set_seconds(1);
  request.mutable_stall_timeout()->set_nanos(-5);
  CHECK(names(messageOf(validateSubmission(request)), {"stall_timeout", "100ms to 1d"}));
  request.mutable_stall_timeout()->set_nanos(99'999'999);
  CHECK(names(messageOf(validateSubmission(request)), {"stall_timeout = 0 s and 99999999 ns"}));
  request.mutable_stall_timeout()->set_nanos(100'000'000);
  CHECK(validateSubmission(request).ok());
  request.mutable_stall_timeout()->set_seconds(86'400);
  CHECK(names(messageOf(validateSubmission(request)), {"stall_timeout = 86400 s and 100000000 ns"}));
  request.mutable_stall_timeout()->set_nanos(0);
  CHECK(validateSubmission(request).ok());
  request.set_request_id(std::string(200, 'r'));
  CHECK(names(messageOf(validateSubmission(request)), {"request_id has 200 bytes"}));
}

TEST_CASE("job_validation: a height that ranks share has a multiple for each", "[supervisor]") {
  JobLimits limits = demoLimits();
  limits.height_shards = 4;
  const auto ask = [&](uint32_t width, uint32_t height) {
    v1::JobParameters parameters = prompt();
    parameters.set_width(width);
    parameters.set_height(height);
    return effectiveParameters(parameters, limits, 7).status();
  };
  CHECK(ask(16, 64).ok());
  CHECK(ask(16, 80).ok());
  CHECK(messageOf(ask(16, 48)) == "height = 48: must be a multiple of 16, at least 64 (ranks share it); nearest: 64");
  CHECK(messageOf(ask(16, 70)) ==
        "height = 70: must be a multiple of 16, at least 64 (ranks share it); nearest: 64 or 80");
  CHECK(names(messageOf(ask(8192, 64)), {"nearest of this shape: 4096x64"}));
  CHECK(checkDefaults(limits).ok());
  limits.defaults.clear_height();
  CHECK(checkDefaults(limits).ok());
  limits.defaults.set_height(32);
  CHECK(fieldOf(checkDefaults(limits)) == "height");
}

TEST_CASE("job_validation: limits of stages and topology merge to the strictest", "[supervisor]") {
  v1::ModelLimits text;
  text.set_prompt_bytes_max(256);
  text.mutable_defaults()->set_guidance_scale(5);
  v1::ModelLimits denoise;
  denoise.set_size_multiple(16);
  denoise.set_frame_step(4);
  denoise.mutable_defaults()->set_guidance_scale(6);
  denoise.mutable_defaults()->set_frames(81);
  v1::ModelLimits decode;
  decode.set_size_multiple(24);
  decode.set_frames_max(49);
  decode.set_height_shards(3);
  decode.set_fps_max(30);
  config::Limits limits{.frames_max = 121,
                        .pixels_max = 1000,
                        .steps_max = 50,
                        .guidance_max = 9,
                        .fps_max = 60,
                        .prompt_bytes_max = 4096};
  config::JobDefaults defaults;
  defaults.frames = 17;
  const JobLimits merged = mergeLimits({text, denoise, decode}, limits, defaults);
  CHECK(merged.size_multiple == 48);
  CHECK(merged.height_shards == 3);
  CHECK(merged.frame_step == 4);
  CHECK(merged.frames_max == 49);
  CHECK(merged.prompt_bytes_max == 256);
  CHECK(merged.pixels_max == 1000);
  CHECK(merged.defaults.frames() == 17);
  CHECK(merged.defaults.guidance_scale() == 5);
  CHECK(merged.defaults.has_negative_prompt());
  const v1::ModelLimits proto = toProto(merged);
  CHECK(proto.frame_step() == 4);
  CHECK(proto.size_multiple() == 48);
  CHECK(proto.height_shards() == 3);
  CHECK(proto.frames_max() == 49);
  CHECK(proto.pixels_max() == 1000);
  CHECK(proto.steps_max() == 50);
  CHECK(proto.guidance_max() == 9);
  CHECK(proto.fps_max() == 30);
  CHECK(proto.prompt_bytes_max() == 256);
  CHECK(proto.flow_shift_min() > 0);
  CHECK(proto.flow_shift_max() > proto.flow_shift_min());
}

}  // namespace
}  // namespace latentd::supervisor
