#include "runtime/media/encoder_process.h"

#include <signal.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <utility>

namespace latentd::media {
namespace {

// Descriptors 0 to 2 are the standard ones.
constexpr int kFirstDescriptor = 3;
// Of what the process prints: a few lines for the error message.
constexpr size_t kOutputBytesKept = 2048;
// What the dynamic linker and a shell return for a program that cannot start.
constexpr int kExitCannotRun = 127;

}  // namespace

StatusOr<std::unique_ptr<EncoderProcess>> EncoderProcess::start(ChildSpawner& spawner, const std::string& executable,
                                                                std::vector<std::string> arguments,
                                                                const std::vector<int>& descriptors) {
  ChildSpec spec;
  spec.executable = executable;
  spec.arguments = std::move(arguments);
  // For libimagequant, which gains nothing from more, and whose palettes depend on the number.
  spec.environment = {"OMP_NUM_THREADS=1"};
  // When it ends is for the daemon to say; a service manager sends its own signals to every process.
  spec.blocked_signals = {SIGINT, SIGTERM};
  for (size_t i = 0; i < descriptors.size(); ++i) {
    spec.inherit.push_back({descriptors[i], kFirstDescriptor + static_cast<int>(i)});
  }
  StatusOr<ChildProcess> child = spawner.spawn(spec);
  if (!child.ok()) {
    return absl::UnavailableError("the encoder cannot run here: " + messageOf(child.status()) +
                                  "; npy, y4m and rgb24 need none");
  }
  return std::unique_ptr<EncoderProcess>(new EncoderProcess(*std::move(child)));
}

EncoderProcess::~EncoderProcess() {
  if (loop_ == nullptr) return;
  loop_->unwatch(exit_watch_);
  loop_->unwatch(output_watch_);
}

Status EncoderProcess::watch(EventLoop& loop, Ended ended) {
  loop_ = &loop;
  ended_ = std::move(ended);
  LATENTD_ASSIGN_OR_RETURN(output_watch_, loop.watch(child_.outputFd(), EPOLLIN, [this](uint32_t) { readOutput(); }));
  LATENTD_ASSIGN_OR_RETURN(exit_watch_, loop.watch(child_.pidFd(), EPOLLIN, [this](uint32_t) { onExit(); }));
  return {};
}

void EncoderProcess::readOutput() {
  std::array<char, 4096> buffer;
  while (true) {
    const ssize_t got = ::read(child_.outputFd(), buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return;  // EAGAIN: the rest comes later
    if (got == 0) break;
    output_.append(buffer.data(), static_cast<size_t>(got));
    if (output_.size() > kOutputBytesKept) output_.erase(0, output_.size() - kOutputBytesKept);
  }
  // A closed pipe stays readable.
  loop_->unwatch(std::exchange(output_watch_, {}));
}

void EncoderProcess::onExit() {
  const std::optional<ExitStatus> exit = child_.tryReap();
  if (!exit) return;
  readOutput();
  loop_->unwatch(std::exchange(exit_watch_, {}));
  const Ended ended = std::move(ended_);
  ended(statusOf(*exit));  // may destroy this
}

std::string EncoderProcess::lastLines() const {
  std::string text;
  for (const char c : output_) {
    if (c != '\n') {
      text += c;
    } else if (!text.empty() && !text.ends_with("| ")) {
      text += " | ";
    }
  }
  if (text.ends_with(" | ")) text.resize(text.size() - 3);
  return text.empty() ? "it printed nothing" : "its last lines: " + text;
}

Status EncoderProcess::statusOf(const ExitStatus& exit) const {
  if (exit.success()) return {};
  if (!exit.signaled && exit.value == kExitCannotRun) {
    return absl::UnavailableError("the encoder cannot run here, " + lastLines() + "; npy, y4m and rgb24 need none");
  }
  const std::string message =
      "latent-encoder (pid " + std::to_string(child_.pid()) + ") ended with " + exit.describe() + "; " + lastLines();
  return exit.signaled ? absl::UnavailableError(message) : absl::InternalError(message);
}

}  // namespace latentd::media
