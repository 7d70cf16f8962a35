#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "proto/api.pb.h"
#include "runtime/base/status.h"
#include "runtime/config/topology.h"

// What a job may ask for. Pure functions: a submission is checked in full before it takes any place.
namespace latentd::supervisor {

// The model's limits and the topology's, merged; every maximum is set.
struct JobLimits {
  uint32_t frame_step = 1;     // frames = 1 + k * frame_step
  uint32_t size_multiple = 1;  // of width and height
  uint32_t height_shards = 1;  // ranks that share the height, which has a multiple for each
  uint32_t frames_max = 0;
  uint64_t pixels_max = 0;
  uint32_t steps_max = 0;
  double guidance_max = 0;
  double fps_max = 0;
  uint32_t prompt_bytes_max = 0;
  v1::JobParameters defaults;
};

// `stages`: what each group's Ready said, in pipeline order; unset fields leave the matter to others. Steps and
// multiples combine to their least common multiple, maxima to the smallest; of defaults, the topology's come first,
// then the first stage's that has one.
JobLimits mergeLimits(const std::vector<v1::ModelLimits>& stages, const config::Limits& limits,
                      const config::JobDefaults& defaults);
v1::ModelLimits toProto(const JobLimits& limits);

// Names of the parameters that a job needs and these lack, in the order of the API.
std::vector<std::string> missingParameters(const v1::JobParameters& parameters);
// Whether the defaults that there are would be accepted. INVALID_ARGUMENT has the field.
Status checkDefaults(const JobLimits& limits);

// The parameters a job will run with: every default filled in, `random_seed` where no seed is given. INVALID_ARGUMENT
// names the field, its value and the nearest valid ones.
StatusOr<v1::JobParameters> effectiveParameters(const v1::JobParameters& requested, const JobLimits& limits,
                                                uint64_t random_seed);
// The fields of a submission beside its parameters.
Status validateSubmission(const v1::SubmitRequest& request);

}  // namespace latentd::supervisor
