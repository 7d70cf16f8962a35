#include "runtime/supervisor/runtime_dir.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <utility>

#include "runtime/base/log.h"
#include "runtime/base/unix_socket.h"

namespace latentd::supervisor {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "latentd-";
constexpr std::string_view kLockName = "lock";
// Longest name inside the folder ("c4294967295-4294967295.sock"), its slash included.
constexpr size_t kNameBytesMax = 28;

// Ours, not a link, and locked by nobody: its daemon is dead. A folder without a lock file is just being made.
bool isLeftover(const fs::path& folder) {
  struct stat info {};
  if (lstat(folder.c_str(), &info) != 0 || !S_ISDIR(info.st_mode) || info.st_uid != geteuid()) return false;
  const UniqueFd lock(open((folder / kLockName).c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  return lock.valid() && flock(lock.get(), LOCK_EX | LOCK_NB) == 0;
}

void sweep(const fs::path& parent) {
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(parent, error)) {
    if (!entry.path().filename().string().starts_with(kPrefix) || !isLeftover(entry.path())) continue;
    getLogger("supervisor")->info("removing {}, left by a daemon that is gone", entry.path().string());
    std::error_code ignored;  // another daemon may be removing it too
    fs::remove_all(entry.path(), ignored);
  }
}

}  // namespace

StatusOr<RuntimeDir> RuntimeDir::create(const std::string& parent) {
  std::error_code error;
  fs::create_directories(parent, error);
  if (error) return errnoStatus(error.value(), "create the folder of runtime_dir, " + parent);
  sweep(parent);
  std::string path = (fs::path(parent) / (std::string(kPrefix) + "XXXXXX")).string();
  if (path.size() + kNameBytesMax > kSocketPathBytesMax) {
    return absl::InvalidArgumentError(
        "runtime_dir \"" + parent + "\" is too long for the Unix sockets in it: at most " +
        std::to_string(kSocketPathBytesMax - kNameBytesMax - kPrefix.size() - 7) + " bytes, for example /tmp");
  }
  if (mkdtemp(path.data()) == nullptr) return errnoStatus(errno, "create a private folder in runtime_dir, " + parent);
  // Locked under another name first: a folder with an unlocked lock file counts as a leftover.
  const std::string unlocked = path + "/unlocked";
  UniqueFd lock(open(unlocked.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  RuntimeDir dir(path, std::move(lock));
  if (!dir.lock_.valid() || flock(dir.lock_.get(), LOCK_EX | LOCK_NB) != 0 ||
      rename(unlocked.c_str(), dir.file(std::string(kLockName)).c_str()) != 0) {
    return errnoStatus(errno, "lock the private folder " + path);
  }
  return dir;
}

RuntimeDir::RuntimeDir(RuntimeDir&& other) noexcept
    : path_(std::exchange(other.path_, {})), lock_(std::move(other.lock_)) {}

RuntimeDir::~RuntimeDir() {
  if (path_.empty()) return;
  std::error_code error;
  fs::remove_all(path_, error);
  if (error) getLogger("supervisor")->warn("cannot remove {}: {}", path_, error.message());
}

}  // namespace latentd::supervisor
