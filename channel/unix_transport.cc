#include "channel/unix_transport.h"

#include <unistd.h>

#include <optional>
#include <utility>

#include "channel/limits.h"
#include "runtime/base/shm_region.h"

namespace latentd::channel {
namespace {

class UnixLink final : public Link {
 public:
  explicit UnixLink(UnixSocket socket) : socket_(std::move(socket)) {}

  StatusOr<Sent> send(const OutFrame& frame) override {
    LATENTD_ASSIGN_OR_RETURN(const UnixSocket::Sent sent, socket_.send(frame.bytes, frame.fds));
    return sent == UnixSocket::Sent::kYes ? Sent::kYes : Sent::kWouldBlock;
  }

  StatusOr<Received> receive(Frame& frame) override {
    LATENTD_ASSIGN_OR_RETURN(const UnixSocket::Received received, socket_.receive(frame, kFrameBytesMax));
    switch (received) {
      case UnixSocket::Received::kFrame:
        return Received::kFrame;
      case UnixSocket::Received::kNothing:
        return Received::kNothing;
      case UnixSocket::Received::kClosed:
        break;
    }
    return Received::kClosed;
  }

  int pollFd() const override { return socket_.fd(); }

 private:
  UnixSocket socket_;
};

class UnixAcceptor final : public Listener {
 public:
  explicit UnixAcceptor(UnixListener listener) : listener_(std::move(listener)) {}

  StatusOr<std::unique_ptr<Link>> accept() override {
    LATENTD_ASSIGN_OR_RETURN(std::optional<UnixSocket> socket, listener_.accept());
    if (!socket) return std::unique_ptr<Link>();
    LATENTD_ASSIGN_OR_RETURN(const uid_t user, socket->peerUser());
    if (user != ::getuid()) {
      return makeStatus(absl::StatusCode::kPermissionDenied, "user " + std::to_string(user) + " connected");
    }
    return std::unique_ptr<Link>(std::make_unique<UnixLink>(*std::move(socket)));
  }

  int pollFd() const override { return listener_.fd(); }

 private:
  UnixListener listener_;
};

class ShmControl final : public ControlMemory {
 public:
  explicit ShmControl(ShmRegion region) : region_(std::make_shared<const ShmRegion>(std::move(region))) {}
  std::span<std::byte> memory() override { return {region_->data(), region_->bytes()}; }
  Handle handle() const override { return {{}, {region_->fd()}, region_}; }

 private:
  std::shared_ptr<const ShmRegion> region_;  // owners: this, and frames on their way out
};

}  // namespace

StatusOr<std::unique_ptr<Listener>> UnixBackend::listen(const std::string& address, uint32_t connections) {
  LATENTD_ASSIGN_OR_RETURN(UnixListener listener, UnixListener::bind(address, static_cast<int>(connections)));
  return std::unique_ptr<Listener>(std::make_unique<UnixAcceptor>(std::move(listener)));
}

StatusOr<std::unique_ptr<Link>> UnixBackend::connect(const std::string& address) {
  LATENTD_ASSIGN_OR_RETURN(UnixSocket socket, UnixSocket::connect(address));
  return std::unique_ptr<Link>(std::make_unique<UnixLink>(std::move(socket)));
}

StatusOr<std::unique_ptr<ControlMemory>> UnixBackend::createControl(const std::string& name, uint64_t bytes) {
  LATENTD_ASSIGN_OR_RETURN(ShmRegion region, ShmRegion::create(name, bytes));
  return std::unique_ptr<ControlMemory>(std::make_unique<ShmControl>(std::move(region)));
}

StatusOr<std::unique_ptr<ControlMemory>> UnixBackend::importControl(const std::string&, std::vector<UniqueFd> fds,
                                                                    uint64_t bytes) {
  LATENTD_ASSIGN_OR_RETURN(UniqueFd fd, takeOnly(std::move(fds)));
  LATENTD_ASSIGN_OR_RETURN(ShmRegion region, ShmRegion::map(std::move(fd), bytes));
  return std::unique_ptr<ControlMemory>(std::make_unique<ShmControl>(std::move(region)));
}

StatusOr<UniqueFd> takeOnly(std::vector<UniqueFd> fds) {
  if (fds.size() == 1) return std::move(fds[0]);
  return makeStatus(absl::StatusCode::kInvalidArgument,
                    "shared memory came with " + std::to_string(fds.size()) + " descriptors instead of one");
}

}  // namespace latentd::channel
