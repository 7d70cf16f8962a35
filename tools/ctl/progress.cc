#include "tools/ctl/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <optional>
#include <vector>

#include "runtime/base/mutex.h"
#include "runtime/supervisor/step_pace.h"
#include "tools/ctl/job_lines.h"
#include "tools/ctl/text.h"

namespace latentd::ctl {
namespace {

constexpr size_t kColumnsDefault = 80;
constexpr double kLeastLeft = 0.005;  // less shows as 0.00 s

bool waitsForEnd(v1::JobState state) { return state == v1::JOB_STATE_RUNNING || state == v1::JOB_STATE_CANCELLING; }

class QuietProgress final : public Progress {
 public:
  explicit QuietProgress(std::FILE* stream) : stream_(stream) {}
  void show(const v1::Job&) override {}
  void tick() override {}
  void note(const std::string& text) override { std::fprintf(stream_, "%s\n", text.c_str()); }
  void end(const std::string& text) override { note(text); }

 private:
  std::FILE* const stream_;
};

// Redraws its lines in place.
class LiveProgress final : public Progress {
 public:
  explicit LiveProgress(std::FILE* stream) : stream_(stream) {}

  void show(const v1::Job& job) override {
    MutexLock held(mutex_);
    shown_ = true;
    lines_.update(job, nowSeconds());
    redraw();
  }

  void tick() override {
    MutexLock held(mutex_);
    redraw();
  }

  void note(const std::string& text) override {
    MutexLock held(mutex_);
    erase();
    std::fprintf(stream_, "%s\n", text.c_str());
    redraw();
  }

  void end(const std::string& text) override {
    MutexLock held(mutex_);
    redraw();
    std::fprintf(stream_, "%s\n", text.c_str());
    std::fflush(stream_);
    shown_ = false;
    drawn_ = 0;
  }

 private:
  void erase() REQUIRES(mutex_) {
    if (drawn_ > 0) std::fprintf(stream_, "\x1b[%zuA", drawn_);
    std::fprintf(stream_, "\r\x1b[J");
    drawn_ = 0;
  }

  void redraw() REQUIRES(mutex_) {
    erase();
    if (shown_) {
      const std::vector<std::string> lines = lines_.at(nowSeconds());
      for (const std::string& line : lines)
        std::fprintf(stream_, "%s\n", oneLine(line, columns()).c_str());
      drawn_ = lines.size();
    }
    std::fflush(stream_);
  }

  // A line that wraps would put the cursor elsewhere than counted.
  size_t columns() const {
    winsize size{};
    const bool known = ioctl(fileno(stream_), TIOCGWINSZ, &size) == 0 && size.ws_col > 1;
    return known ? size.ws_col - 1 : kColumnsDefault;
  }

  std::FILE* const stream_;
  Mutex mutex_;
  JobLines lines_ GUARDED_BY(mutex_);
  bool shown_ GUARDED_BY(mutex_) = false;  // there is a job, and it has not ended
  size_t drawn_ GUARDED_BY(mutex_) = 0;
};

// A line where something worth one changed: for logs.
class PlainProgress final : public Progress {
 public:
  explicit PlainProgress(std::FILE* stream) : stream_(stream) {}

  void show(const v1::Job& job) override {
    MutexLock held(mutex_);
    if (job.restarts() + job.displacements() > returns_) {
      returns_ = job.restarts() + job.displacements();
      position_ = 0;
      print(returnText(job));
    }
    if (job.state() == v1::JOB_STATE_QUEUED && job.queue_position() != position_) {
      position_ = job.queue_position();
      print(fmt::format("queued: position {}", position_));
    }
    if (job.state() == v1::JOB_STATE_QUEUED) shown_.clear();  // it may have run before
    bool all_ended = true;
    for (const v1::StageProgress& stage : job.stages()) {
      showStage(job, stage, all_ended);
      all_ended = all_ended && stage.has_finish_time();
    }
    if (job.state() == v1::JOB_STATE_CANCELLING && !said_cancelling_) {
      said_cancelling_ = true;
      print("cancelling: the stage stops at its next step");
    }
    const v1::StageProgress* awaited = awaitedStage(job);
    awaited_ = awaited == nullptr ? "" : awaited->stage();
    wait_ = awaited == nullptr || waitText(*awaited).empty() ? "" : ": " + waitText(*awaited);
  }

  // Most stages follow at once on the one before, and are not worth a line: a wait is told when it lasts.
  void tick() override {
    MutexLock held(mutex_);
    if (awaited_.empty()) return;
    std::string& told = shown_[awaited_].awaited;
    const std::string line = "waiting for " + awaited_ + wait_;
    // A reason that goes is the end of the wait.
    if (told == line || (!told.empty() && wait_.empty())) return;
    told = line;
    print(line);
  }

  void note(const std::string& text) override {
    MutexLock held(mutex_);
    print(text);
  }
  void end(const std::string& text) override { note(text); }

 private:
  struct Shown {
    std::string awaited;  // the last line about its wait
    bool started = false;
    bool finished = false;
    uint32_t tenth = 0;
    std::optional<supervisor::StepPace> pace;
  };

  // Of the stage, then of the whole job where later stages are known: ", 4.20 s left, 6.10 s in all".
  static std::string leftText(const v1::Job& job, const v1::StageProgress& stage, const supervisor::StepPace& pace) {
    const auto worthTelling = [](const std::optional<double>& seconds) { return seconds && *seconds >= kLeastLeft; };
    const std::optional<double> of_stage = pace.left(stage.steps(), nowSeconds());
    std::optional<double> in_all = secondsLeft(job);
    // The daemon's comes from earlier jobs too, which may have been faster.
    if (in_all && of_stage) in_all = std::max(*in_all, *of_stage);
    return (worthTelling(of_stage) ? ", " + formatSeconds(*of_stage) + " left" : "") +
           (worthTelling(in_all) ? ", " + formatSeconds(*in_all) + " in all" : "");
  }

  void showStage(const v1::Job& job, const v1::StageProgress& stage, bool all_ended) REQUIRES(mutex_) {
    Shown& shown = shown_[stage.stage()];
    // It computes a little before the daemon hears of the end of the stage whose output it has: told after that.
    const bool told = all_ended || stage.step() > 0 || stage.has_finish_time();
    if (stage.has_compute_start_time() && told && !shown.started) {
      shown.started = true;
      print(stage.stage() + ": started");
    }
    showSteps(job, stage, shown);
    if (stage.has_finish_time() && shown.started && !shown.finished) {
      shown.finished = true;
      print(stage.stage() + (wasCutOff(job, stage) ? ": stopped after " : ": done in ") +
            formatSeconds(workSeconds(stage)));
    }
  }

  void showSteps(const v1::Job& job, const v1::StageProgress& stage, Shown& shown) REQUIRES(mutex_) {
    if (!shown.pace) shown.pace.emplace().join(stage.step(), nowSeconds());
    shown.pace->note(stage.step(), nowSeconds(), toSeconds(stage.compute_start_time()));
    // Ten lines a stage, however many steps it has; its only step is told by start and end.
    const uint32_t tenth = stage.steps() < 2 ? 0 : static_cast<uint32_t>(10ull * stage.step() / stage.steps());
    if (stage.has_finish_time() || tenth <= shown.tenth || !waitsForEnd(job.state())) return;
    shown.tenth = tenth;
    print(
        fmt::format("{}: step {}/{}{}", stage.stage(), stage.step(), stage.steps(), leftText(job, stage, *shown.pace)));
  }

  void print(const std::string& line) REQUIRES(mutex_) {
    std::fprintf(stream_, "%s\n", line.c_str());
    std::fflush(stream_);
  }

  std::FILE* const stream_;
  Mutex mutex_;
  uint32_t position_ GUARDED_BY(mutex_) = 0;
  uint32_t returns_ GUARDED_BY(mutex_) = 0;  // restarts and displacements told
  std::map<std::string, Shown> shown_ GUARDED_BY(mutex_);
  std::string awaited_ GUARDED_BY(mutex_);  // a stage, or empty
  std::string wait_ GUARDED_BY(mutex_);     // why, as far as that is known
  bool said_cancelling_ GUARDED_BY(mutex_) = false;
};

}  // namespace

std::unique_ptr<Progress> Progress::create(std::FILE* stream, bool quiet) {
  if (quiet) return std::make_unique<QuietProgress>(stream);
  if (isatty(fileno(stream)) != 0) return std::make_unique<LiveProgress>(stream);
  return std::make_unique<PlainProgress>(stream);
}

}  // namespace latentd::ctl
