#include "tools/ctl/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <vector>

#include "runtime/base/mutex.h"
#include "tools/ctl/text.h"

namespace latentd::ctl {
namespace {

constexpr size_t kBarCells = 24;
constexpr size_t kColumnsDefault = 80;

std::string timeLeft(const v1::Job& job) {
  return job.has_remaining() ? formatSeconds(toSeconds(job.remaining())) + " left" : "";
}

std::string bar(uint32_t step, uint32_t steps) {
  const size_t filled = std::min<size_t>(kBarCells, kBarCells * step / std::max<uint32_t>(steps, 1));
  return "[" + std::string(filled, '#') + std::string(kBarCells - filled, '.') + "]";
}

bool runs(const v1::StageProgress& stage) { return stage.has_start_time() && !stage.has_finish_time(); }

std::string endOf(const v1::Job& job, const v1::StageProgress& stage) {
  return wasCutOff(job, stage) ? "stopped after" : "done in";
}

bool waitsForEnd(v1::JobState state) { return state == v1::JOB_STATE_RUNNING || state == v1::JOB_STATE_CANCELLING; }

class QuietProgress final : public Progress {
 public:
  explicit QuietProgress(std::FILE* stream) : stream_(stream) {}
  void show(const v1::Job&) override {}
  void note(const std::string& text) override { std::fprintf(stream_, "%s\n", text.c_str()); }

 private:
  std::FILE* const stream_;
};

// Redraws its lines in place.
class LiveProgress final : public Progress {
 public:
  explicit LiveProgress(std::FILE* stream) : stream_(stream) {}

  void show(const v1::Job& job) override {
    MutexLock held(mutex_);
    lines_.clear();
    if (job.state() == v1::JOB_STATE_QUEUED)
      lines_.push_back(fmt::format("queued    position {}", job.queue_position()));
    if (job.restarts() > 0) lines_.push_back("restarted " + restartText(job));
    for (int i = 0; i < job.stages_size(); ++i) {
      if (job.stages(i).has_compute_start_time()) lines_.push_back(stageLine(job, i));
    }
    if (job.state() == v1::JOB_STATE_CANCELLING) lines_.push_back("cancelling: the stage stops at its next step");
    redraw();
  }

  void note(const std::string& text) override {
    MutexLock held(mutex_);
    erase();
    std::fprintf(stream_, "%s\n", text.c_str());
    redraw();
  }

 private:
  static std::string stageLine(const v1::Job& job, int index) {
    const v1::StageProgress& stage = job.stages(index);
    const double elapsed = workSeconds(stage);
    if (!runs(stage)) return fmt::format("{:<9} {} {}", stage.stage(), endOf(job, stage), formatSeconds(elapsed));
    if (stage.steps() == 0) return fmt::format("{:<9} running for {}", stage.stage(), formatSeconds(elapsed));
    std::string line =
        fmt::format("{:<9} {} {}/{}", stage.stage(), bar(stage.step(), stage.steps()), stage.step(), stage.steps());
    if (stage.step() > 0) line += "  " + formatSeconds(elapsed / stage.step()) + "/step";
    if (const std::string left = timeLeft(job); !left.empty()) line += "  " + left;
    return line;
  }

  void erase() REQUIRES(mutex_) {
    if (drawn_ > 0) std::fprintf(stream_, "\x1b[%zuA", drawn_);
    std::fprintf(stream_, "\r\x1b[J");
    drawn_ = 0;
  }

  void redraw() REQUIRES(mutex_) {
    erase();
    for (const std::string& line : lines_)
      std::fprintf(stream_, "%s\n", oneLine(line, columns()).c_str());
    drawn_ = lines_.size();
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
  std::vector<std::string> lines_ GUARDED_BY(mutex_);
  size_t drawn_ GUARDED_BY(mutex_) = 0;
};

// A line where something worth one changed: for logs.
class PlainProgress final : public Progress {
 public:
  explicit PlainProgress(std::FILE* stream) : stream_(stream) {}

  void show(const v1::Job& job) override {
    MutexLock held(mutex_);
    if (job.restarts() > restarts_) {
      restarts_ = job.restarts();
      position_ = 0;
      shown_.clear();
      print("restarted: " + restartText(job));
    }
    if (job.state() == v1::JOB_STATE_QUEUED && job.queue_position() != position_) {
      position_ = job.queue_position();
      print(fmt::format("queued: position {}", position_));
    }
    for (int i = 0; i < job.stages_size(); ++i)
      showStage(job, i);
    if (job.state() == v1::JOB_STATE_CANCELLING && !said_cancelling_) {
      said_cancelling_ = true;
      print("cancelling: the stage stops at its next step");
    }
  }

  void note(const std::string& text) override {
    MutexLock held(mutex_);
    print(text);
  }

 private:
  struct Shown {
    bool started = false;
    bool finished = false;
    uint32_t tenth = 0;
  };

  void showStage(const v1::Job& job, int index) REQUIRES(mutex_) {
    const v1::StageProgress& stage = job.stages(index);
    Shown& shown = shown_[stage.stage()];
    if (stage.has_compute_start_time() && !shown.started) {
      shown.started = true;
      print(stage.stage() + ": started");
    }
    // Ten lines a stage, however many steps it has; its only step is told by start and end.
    const uint32_t tenth = stage.steps() < 2 ? 0 : static_cast<uint32_t>(10ull * stage.step() / stage.steps());
    if (runs(stage) && tenth > shown.tenth && waitsForEnd(job.state())) {
      shown.tenth = tenth;
      const std::string left = timeLeft(job);
      print(
          fmt::format("{}: step {}/{}{}", stage.stage(), stage.step(), stage.steps(), left.empty() ? "" : ", " + left));
    }
    if (stage.has_finish_time() && shown.started && !shown.finished) {
      shown.finished = true;
      print(stage.stage() + ": " + endOf(job, stage) + " " + formatSeconds(workSeconds(stage)));
    }
  }

  void print(const std::string& line) REQUIRES(mutex_) {
    std::fprintf(stream_, "%s\n", line.c_str());
    std::fflush(stream_);
  }

  std::FILE* const stream_;
  Mutex mutex_;
  uint32_t position_ GUARDED_BY(mutex_) = 0;
  uint32_t restarts_ GUARDED_BY(mutex_) = 0;
  std::map<std::string, Shown> shown_ GUARDED_BY(mutex_);
  bool said_cancelling_ GUARDED_BY(mutex_) = false;
};

}  // namespace

std::unique_ptr<Progress> Progress::create(std::FILE* stream, bool quiet) {
  if (quiet) return std::make_unique<QuietProgress>(stream);
  if (isatty(fileno(stream)) != 0) return std::make_unique<LiveProgress>(stream);
  return std::make_unique<PlainProgress>(stream);
}

}  // namespace latentd::ctl
