#include "runtime/base/unix_socket.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <string>

#include "tests/support/catch.h"
#include "tests/support/temp_dir.h"

namespace latentd {
namespace {

constexpr size_t kMost = 4096;

struct Pair {
  UnixSocket left;
  UnixSocket right;
};

Pair makePair() {
  auto pair = UnixSocket::pair();
  REQUIRE(pair.ok());
  return {std::move(pair->first), std::move(pair->second)};
}

}  // namespace

TEST_CASE("unix socket: messages keep their bounds and order, and what was sent before the end arrives", "[base]") {
  Pair pair = makePair();
  Frame frame;
  CHECK(*pair.right.receive(frame, kMost) == UnixSocket::Received::kNothing);
  CHECK(*pair.left.send("one") == UnixSocket::Sent::kYes);
  CHECK(*pair.left.send(std::string("\0two", 4)) == UnixSocket::Sent::kYes);
  pair.left = UnixSocket(UniqueFd(::eventfd(0, EFD_CLOEXEC)));  // closes the first end
  CHECK(*pair.right.receive(frame, kMost) == UnixSocket::Received::kFrame);
  CHECK(frame.bytes == "one");
  CHECK(*pair.right.receive(frame, kMost) == UnixSocket::Received::kFrame);
  CHECK(frame.bytes == std::string("\0two", 4));
  CHECK(*pair.right.receive(frame, kMost) == UnixSocket::Received::kClosed);
  CHECK(pair.right.send("three").status().code() == absl::StatusCode::kUnavailable);
}

TEST_CASE("unix socket: a peer that ends with unread messages does not hide what it had sent", "[base]") {
  Pair pair = makePair();
  Frame frame;
  CHECK(*pair.right.send("never read") == UnixSocket::Sent::kYes);
  CHECK(*pair.left.send("last words") == UnixSocket::Sent::kYes);
  pair.left = UnixSocket(UniqueFd(::eventfd(0, EFD_CLOEXEC)));
  CHECK(*pair.right.receive(frame, kMost) == UnixSocket::Received::kFrame);
  CHECK(frame.bytes == "last words");
  CHECK(*pair.right.receive(frame, kMost) == UnixSocket::Received::kClosed);
}

TEST_CASE("unix socket: descriptors travel with their message, close-on-exec", "[base]") {
  Pair pair = makePair();
  const UniqueFd sent(::eventfd(5, EFD_NONBLOCK));
  const int fds[] = {sent.get(), sent.get()};
  CHECK(*pair.left.send("two", fds) == UnixSocket::Sent::kYes);
  Frame frame;
  REQUIRE(*pair.right.receive(frame, kMost) == UnixSocket::Received::kFrame);
  REQUIRE(frame.fds.size() == 2);
  CHECK((::fcntl(frame.fds[0].get(), F_GETFD) & FD_CLOEXEC) != 0);
  uint64_t value = 0;
  CHECK(::read(frame.fds[1].get(), &value, sizeof(value)) == sizeof(value));
  CHECK(value == 5);
  CHECK_FALSE(frame.fds_lost);
}

TEST_CASE("unix socket: a full socket would block, a long message is refused", "[base]") {
  Pair pair = makePair();
  int sent = 0;
  while (*pair.left.send(std::string(kMost, 'x')) == UnixSocket::Sent::kYes)
    ++sent;
  CHECK(sent > 0);
  Frame frame;
  CHECK(*pair.right.receive(frame, kMost) == UnixSocket::Received::kFrame);
  CHECK(frame.bytes.size() == kMost);
  Pair other = makePair();
  CHECK(other.left.send(std::string(kMost + 1, 'x')).ok());
  CHECK(other.right.receive(frame, kMost).status().code() == absl::StatusCode::kInvalidArgument);
}

TEST_CASE("unix listener: binds once, accepts, leaves no file", "[base]") {
  const testing::TempDir folder;
  const std::string path = folder.file("s");
  CHECK(UnixSocket::connect(path).status().code() == absl::StatusCode::kUnavailable);
  {
    auto listener = UnixListener::bind(path, 4);
    REQUIRE(listener.ok());
    CHECK(UnixListener::bind(path, 4).status().code() == absl::StatusCode::kAlreadyExists);
    CHECK_FALSE(listener->accept()->has_value());
    auto client = UnixSocket::connect(path);
    REQUIRE(client.ok());
    auto server = listener->accept();
    REQUIRE(server.ok());
    REQUIRE(server->has_value());
    CHECK(*(*server)->peerUser() == ::getuid());
    UnixListener moved = *std::move(listener);
    CHECK(::access(path.c_str(), F_OK) == 0);
  }
  CHECK(folder.entries() == 0);
  const Status too_long = UnixListener::bind("/tmp/" + std::string(kSocketPathBytesMax, 'x'), 4).status();
  CHECK(too_long.code() == absl::StatusCode::kInvalidArgument);
  CHECK(UnixSocket::connect("").status().code() == absl::StatusCode::kInvalidArgument);
}

}  // namespace latentd
