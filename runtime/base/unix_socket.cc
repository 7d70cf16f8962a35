#include "runtime/base/unix_socket.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "runtime/base/check.h"

namespace latentd {
namespace {

constexpr int kType = SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC;

StatusOr<sockaddr_un> addressOf(const std::string& path) {
  if (path.empty() || path.size() + 1 > kSocketPathBytesMax) {
    return makeStatus(absl::StatusCode::kInvalidArgument,
                      "socket path \"" + path + "\" has " + std::to_string(path.size()) + " bytes; 1 to " +
                          std::to_string(kSocketPathBytesMax - 1) + " fit: use a shorter runtime directory");
  }
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  return address;
}

bool wouldBlock(int error_number) { return error_number == EAGAIN || error_number == EWOULDBLOCK; }

// Room for the descriptors of one frame, aligned as the kernel wants it.
struct ControlBuffer {
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * kFrameFdsMax)> bytes;
};

void takeDescriptors(msghdr& message, Frame& frame) {
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
      frame.fds.emplace_back(fd);
    }
  }
}

}  // namespace

UnixSocket::UnixSocket(UniqueFd fd) : fd_(std::move(fd)) {
  const int flags = ::fcntl(fd_.get(), F_GETFL);
  LATENTD_CHECK(flags >= 0 && ::fcntl(fd_.get(), F_SETFL, flags | O_NONBLOCK) == 0, "not a socket descriptor");
}

StatusOr<UnixSocket> UnixSocket::connect(const std::string& path) {
  LATENTD_ASSIGN_OR_RETURN(const sockaddr_un address, addressOf(path));
  UniqueFd fd(::socket(AF_UNIX, kType, 0));
  if (!fd.valid()) return errnoStatus(errno, "creating a socket for " + path);
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    const int error_number = errno;
    if (error_number == ENOENT || error_number == ECONNREFUSED) {
      return makeStatus(absl::StatusCode::kUnavailable, "nobody listens on " + path);
    }
    return errnoStatus(error_number, "connecting to " + path);
  }
  return UnixSocket(std::move(fd));
}

StatusOr<std::pair<UnixSocket, UnixSocket>> UnixSocket::pair() {
  int fds[2];
  if (::socketpair(AF_UNIX, kType, 0, fds) != 0) return errnoStatus(errno, "creating a pair of sockets");
  return std::make_pair(UnixSocket(UniqueFd(fds[0])), UnixSocket(UniqueFd(fds[1])));
}

StatusOr<UnixSocket::Sent> UnixSocket::send(std::string_view bytes, std::span<const int> fds) {
  LATENTD_CHECK(!bytes.empty(), "an empty message reads as the end of the connection");
  LATENTD_CHECK(fds.size() <= kFrameFdsMax, "too many descriptors in one frame");
  iovec part{const_cast<char*>(bytes.data()), bytes.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  ControlBuffer control{};
  if (!fds.empty()) {
    message.msg_control = control.bytes.data();
    message.msg_controllen = CMSG_SPACE(sizeof(int) * fds.size());
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int) * fds.size());
    std::memcpy(CMSG_DATA(header), fds.data(), sizeof(int) * fds.size());
  }
  while (::sendmsg(fd_.get(), &message, MSG_NOSIGNAL) < 0) {
    if (errno == EINTR) continue;
    if (wouldBlock(errno)) return Sent::kWouldBlock;
    return errnoStatus(errno, "sending to the peer");
  }
  return Sent::kYes;
}

StatusOr<UnixSocket::Received> UnixSocket::receive(Frame& frame, size_t bytes_max) {
  frame.fds.clear();
  frame.fds_lost = false;
  frame.bytes.clear();
  if (buffer_ == nullptr) buffer_ = std::make_unique_for_overwrite<char[]>(bytes_max);
  iovec part{buffer_.get(), bytes_max};
  ControlBuffer control;
  msghdr message{};
  ssize_t count = -1;
  do {
    message = msghdr{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.bytes.data();
    message.msg_controllen = control.bytes.size();
    count = ::recvmsg(fd_.get(), &message, MSG_CMSG_CLOEXEC);
    // A peer that died with unread messages resets the connection: the kernel says so once, ahead of what the peer had
    // sent, which is still there.
  } while (count < 0 && (errno == EINTR || errno == ECONNRESET));
  if (count < 0) {
    const int error_number = errno;
    if (wouldBlock(error_number)) return Received::kNothing;
    return errnoStatus(error_number, "receiving from the peer");
  }
  takeDescriptors(message, frame);
  frame.bytes.assign(buffer_.get(), static_cast<size_t>(count));
  if (count == 0) return Received::kClosed;
  if ((message.msg_flags & MSG_TRUNC) != 0) {
    return makeStatus(absl::StatusCode::kInvalidArgument,
                      "the peer sent a message of more than " + std::to_string(bytes_max) + " bytes");
  }
  frame.fds_lost = (message.msg_flags & MSG_CTRUNC) != 0;
  return Received::kFrame;
}

StatusOr<uid_t> UnixSocket::peerUser() const {
  ucred credentials{};
  socklen_t size = sizeof(credentials);
  if (::getsockopt(fd_.get(), SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) {
    return errnoStatus(errno, "asking who the peer is");
  }
  return credentials.uid;
}

StatusOr<UnixListener> UnixListener::bind(const std::string& path, int backlog) {
  LATENTD_ASSIGN_OR_RETURN(const sockaddr_un address, addressOf(path));
  UniqueFd fd(::socket(AF_UNIX, kType, 0));
  if (!fd.valid()) return errnoStatus(errno, "creating a socket for " + path);
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    if (errno == EADDRINUSE) {
      return makeStatus(absl::StatusCode::kAlreadyExists, "socket path " + path + " is in use: choose another");
    }
    return errnoStatus(errno, "binding " + path);
  }
  UnixListener listener(std::move(fd), path);
  if (::listen(listener.fd(), backlog) != 0) return errnoStatus(errno, "listening on " + path);
  return listener;
}

UnixListener::UnixListener(UnixListener&& other) noexcept
    : fd_(std::move(other.fd_)), path_(std::exchange(other.path_, {})) {}

UnixListener& UnixListener::operator=(UnixListener&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(path_, other.path_);
  return *this;
}

UnixListener::~UnixListener() {
  if (!path_.empty()) ::unlink(path_.c_str());
}

StatusOr<std::optional<UnixSocket>> UnixListener::accept() {
  int fd = -1;
  do {
    fd = ::accept4(fd_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
  } while (fd < 0 && (errno == EINTR || errno == ECONNABORTED));
  if (fd >= 0) return std::optional<UnixSocket>(UnixSocket(UniqueFd(fd)));
  if (wouldBlock(errno)) return std::optional<UnixSocket>();
  return errnoStatus(errno, "accepting a connection on " + path_);
}

}  // namespace latentd
