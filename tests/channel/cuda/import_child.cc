#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <map>

#include "channel/cuda_ipc_backend.h"
#include "runtime/base/shm_region.h"
#include "runtime/base/unix_socket.h"
#include "runtime/cuda/memory.h"
#include "tests/channel/channel_rig.h"
#include "tests/channel/cuda/device_tensors.h"
#include "tests/channel/cuda/import_messages.h"
#include "tests/support/catch.h"

// The importing process of import_process.h.
namespace latentd::channel::testing {
namespace {

class ImportServer {
 public:
  ImportServer() : stream_(*cuda::Stream::create(device_)), backend_(makeCudaIpcBackend({stream_.view()})) {}

  StatusOr<ImportMessage> answer(const ImportMessage& request, Frame& frame) {
    NumberReader in(request.numbers);
    const auto call = static_cast<ImportCall>(in.next());
    const int64_t id = in.next();
    if (call == ImportCall::kImport) return import(id, in, request.bytes, frame);
    if (call == ImportCall::kDrop) {
      pools_.erase(id);
      return ImportMessage{{0}, {}};
    }
    Pool& pool = pools_.at(id);
    switch (call) {
      case ImportCall::kRead:
        return read(pool, in);
      case ImportCall::kBorrow:
        return borrow(pool, in);
      case ImportCall::kComplete:
        LATENTD_RETURN_IF_ERROR(pool.imported->complete(SlotIndex(static_cast<uint32_t>(in.next()))));
        return ImportMessage{{0}, {}};
      default: {
        LATENTD_ASSIGN_OR_RETURN(const bool unmapped, pool.imported->tryUnmap());
        return ImportMessage{{0, unmapped}, {}};
      }
    }
  }

 private:
  struct Pool {
    PoolLayout layout;
    ShmRegion mirror;
    cuda::DeviceBuffer window;
    std::shared_ptr<ImportedPool> imported;
  };

  StatusOr<ImportMessage> import(int64_t id, NumberReader& in, const std::string& handle, Frame& frame) {
    PoolLayout layout;
    layout.slots = static_cast<uint32_t>(in.next());
    layout.slot_stride = static_cast<uint64_t>(in.next());
    layout.bytes = static_cast<uint64_t>(in.next());
    layout.one_shot = in.next() != 0;
    LATENTD_ASSIGN_OR_RETURN(ShmRegion mirror,
                             ShmRegion::map(std::move(frame.fds.at(0)), layout.bytes + kReadWindowBytes));
    LATENTD_ASSIGN_OR_RETURN(cuda::DeviceBuffer window, cuda::DeviceBuffer::allocate(device_, kReadWindowBytes));
    LATENTD_ASSIGN_OR_RETURN(std::shared_ptr<ImportedPool> imported, backend_->importPool(handle, {}, layout));
    std::string attachment = imported->attachment();
    pools_.emplace(id, Pool{layout, std::move(mirror), std::move(window), std::move(imported)});
    return ImportMessage{{0}, std::move(attachment)};
  }

  StatusOr<ImportMessage> read(Pool& pool, NumberReader& in) {
    const SlotIndex slot(static_cast<uint32_t>(in.next()));
    const auto offset = static_cast<uint64_t>(in.next());
    TensorView target;
    target.dtype = static_cast<DType>(in.next());
    target.device = {DeviceType::kCuda, static_cast<uint32_t>(device_.value)};
    target.data = pool.window.data();
    CopyRegion region;
    region.source_offset = in.next();
    region.extents = in.list();
    region.source_strides = in.list();
    region.target_strides = in.list();
    int64_t last = 0;
    for (size_t d = 0; d < region.extents.size(); ++d)
      last += (region.extents[d] - 1) * region.target_strides[d];
    const uint64_t bytes = static_cast<uint64_t>(last + 1) * byteSize(target.dtype);
    if (bytes > kReadWindowBytes) return makeStatus(absl::StatusCode::kInvalidArgument, "too large for a test");
    LATENTD_RETURN_IF_ERROR(pool.imported->read(slot, offset, {&region, 1}, target));
    return mirror(pool, pool.layout.bytes, pool.window.data(), bytes);
  }

  StatusOr<ImportMessage> borrow(Pool& pool, NumberReader& in) {
    const SlotIndex slot(static_cast<uint32_t>(in.next()));
    const auto offset = static_cast<uint64_t>(in.next());
    LATENTD_ASSIGN_OR_RETURN(void* const lent, pool.imported->borrow(slot, offset));
    return mirror(pool, slot.value * pool.layout.slot_stride + offset, lent, pool.layout.slot_stride - offset);
  }

  StatusOr<ImportMessage> mirror(Pool& pool, uint64_t at, const void* device, uint64_t bytes) {
    cudaMemcpyAsync(pool.mirror.data() + at, device, bytes, cudaMemcpyDeviceToHost, stream_.view().get());
    LATENTD_RETURN_IF_ERROR(stream_.synchronize());
    return ImportMessage{{0}, {}};
  }

  const cuda::DeviceIndex device_ = consumerDevice();
  cuda::Stream stream_;
  const std::shared_ptr<Backend> backend_;
  std::map<int64_t, Pool> pools_;
};

}  // namespace

TEST_CASE("channel import child", "[.][child]") {
  UnixSocket socket{UniqueFd(::fcntl(3, F_DUPFD_CLOEXEC, 10))};
  ::close(3);
  ImportServer server;
  // Ends with its parent, which kills it or goes.
  for (;;) {
    Frame frame;
    const auto received = socket.receive(frame, kImportMessageMax);
    if (!received.ok() || *received == UnixSocket::Received::kClosed) return;
    if (*received == UnixSocket::Received::kNothing) {
      pollfd waited{socket.fd(), POLLIN, 0};
      ::poll(&waited, 1, -1);
      continue;
    }
    const auto reply = server.answer(ImportMessage::decode(frame.bytes), frame);
    const ImportMessage refused{{static_cast<int64_t>(reply.status().code())}, messageOf(reply.status())};
    REQUIRE(socket.send(reply.ok() ? reply->encode() : refused.encode()).ok());
  }
}

}  // namespace latentd::channel::testing
