#pragma once

#include <sys/types.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/base/unique_fd.h"

namespace latentd {

// The longest path that sun_path (108 bytes) takes on every system we run on, its end included.
inline constexpr size_t kSocketPathBytesMax = 100;
// Descriptors in one frame.
inline constexpr size_t kFrameFdsMax = 8;

// One received message.
struct Frame {
  std::string bytes;
  std::vector<UniqueFd> fds;
  bool fds_lost = false;  // descriptors were sent, but this process had none free: the message came without them
};

// One end of a connected SOCK_SEQPACKET Unix socket: whole messages, in order, with descriptors. Non-blocking and
// close-on-exec. Owner: anyone; move only. Thread: one sender and one receiver at a time.
// States: open -> closed by the peer (receive() says so, send() fails UNAVAILABLE).
// Failure: a Status; a message longer than the receiver's buffer is INVALID_ARGUMENT and is lost.
class UnixSocket {
 public:
  enum class Sent { kYes, kWouldBlock };
  enum class Received { kFrame, kNothing, kClosed };

  // UNAVAILABLE when nobody listens there; RESOURCE_EXHAUSTED when its queue of connections is full.
  static StatusOr<UnixSocket> connect(const std::string& path);
  static StatusOr<std::pair<UnixSocket, UnixSocket>> pair();
  // Takes a connected SOCK_SEQPACKET descriptor and makes it non-blocking.
  explicit UnixSocket(UniqueFd fd);

  // `bytes` must not be empty: an empty message cannot be told from the end. The descriptors stay the caller's.
  StatusOr<Sent> send(std::string_view bytes, std::span<const int> fds = {});
  // Fills `frame` (reusing its memory) with a message of at most `bytes_max`, the same at each call.
  StatusOr<Received> receive(Frame& frame, size_t bytes_max);

  int fd() const { return fd_.get(); }
  // User of the process that connected.
  StatusOr<uid_t> peerUser() const;

 private:
  UniqueFd fd_;
  std::unique_ptr<char[]> buffer_;  // of the longest message; made at the first receive()
};

// A listening SOCK_SEQPACKET socket bound to a path, which it unlinks when destroyed. Owner: anyone; move only.
class UnixListener {
 public:
  // INVALID_ARGUMENT for a path that is too long; ALREADY_EXISTS if the path exists.
  static StatusOr<UnixListener> bind(const std::string& path, int backlog);
  UnixListener(UnixListener&& other) noexcept;
  UnixListener& operator=(UnixListener&& other) noexcept;
  ~UnixListener();

  // Empty when nobody waits.
  StatusOr<std::optional<UnixSocket>> accept();
  int fd() const { return fd_.get(); }

 private:
  UnixListener(UniqueFd fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}
  UniqueFd fd_;
  std::string path_;  // empty once moved from
};

}  // namespace latentd
