#pragma once

#include <string>
#include <vector>

#include "proto/api.pb.h"

namespace latentd::ctl {

std::string formatJobs(const std::vector<v1::Job>& jobs);
std::string formatJob(const v1::Job& job);

// The stage that runs, or did when the job ended, with its steps: "denoise 3/16", "position 2".
std::string progressOf(const v1::Job& job);

}  // namespace latentd::ctl
