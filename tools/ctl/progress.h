#pragma once

#include <cstdio>
#include <memory>
#include <string>

#include "proto/api.pb.h"

namespace latentd::ctl {

// Shows a job's way on standard error: queue position, then stages with their steps and the time left.
// Owner: the command. Thread: any; the interrupt thread adds notes.
class Progress {
 public:
  // A live block with a line a stage on a terminal, plain lines where something changed elsewhere; nothing when quiet.
  static std::unique_ptr<Progress> create(std::FILE* stream, bool quiet);
  virtual ~Progress() = default;

  virtual void show(const v1::Job& job) = 0;
  // Time passed without a change.
  virtual void tick() = 0;
  // A line of its own.
  virtual void note(const std::string& text) = 0;
  // The last line: nothing is drawn below it.
  virtual void end(const std::string& text) = 0;
};

}  // namespace latentd::ctl
