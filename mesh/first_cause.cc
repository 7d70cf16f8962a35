#include "mesh/first_cause.h"

#include <poll.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

#include "runtime/base/unique_fd.h"

namespace latentd::mesh {
namespace {

// Nothing longer is a cause that we wrote.
constexpr size_t kTextMax = 16 << 10;

std::string encode(const Status& status) {
  return std::to_string(static_cast<int>(status.code())) + " " + messageOf(status);
}

std::optional<Status> decode(const std::string& text) {
  std::istringstream in(text);
  int code = 0;
  if (!(in >> code) || code <= 0 || code > static_cast<int>(absl::StatusCode::kUnauthenticated)) return std::nullopt;
  in.get();
  return makeStatus(static_cast<absl::StatusCode>(code), std::string(std::istreambuf_iterator<char>(in), {}));
}

}  // namespace

std::optional<Status> FirstCause::given() const {
  std::ifstream file(path_, std::ios::binary);
  if (!file) return std::nullopt;
  std::string text(kTextMax, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  return decode(text);
}

std::optional<Status> FirstCause::await(std::chrono::steady_clock::time_point deadline) const {
  const UniqueFd changes(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
  const std::string folder = std::filesystem::path(path_).parent_path();
  if (!changes.valid() || ::inotify_add_watch(changes.get(), folder.c_str(), IN_CREATE) < 0) return given();
  for (;;) {
    if (auto cause = given()) return cause;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    pollfd waited{changes.get(), POLLIN, 0};
    if (left.count() <= 0 || ::poll(&waited, 1, static_cast<int>(left.count())) == 0) return given();
    char events[4096];
    while (::read(changes.get(), events, sizeof(events)) > 0) {
    }
  }
}

Status FirstCause::give(const Status& mine) const {
  if (auto theirs = given()) return *std::move(theirs);
  const std::string whole = path_ + "." + std::to_string(::getpid());
  {
    std::ofstream file(whole, std::ios::binary | std::ios::trunc);
    file << encode(mine).substr(0, kTextMax);
    file.close();
    if (!file) return mine;
  }
  // A link appears with all of its content, and only one rank can make it.
  const bool first = ::link(whole.c_str(), path_.c_str()) == 0;
  ::unlink(whole.c_str());
  return first ? mine : given().value_or(mine);
}

}  // namespace latentd::mesh
