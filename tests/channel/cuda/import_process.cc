#include "tests/channel/cuda/import_process.h"

#include <poll.h>

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "channel/strided_copy.h"
#include "channel/unix_transport.h"
#include "runtime/base/mutex.h"
#include "runtime/base/shm_region.h"
#include "runtime/base/unix_socket.h"
#include "tests/channel/channel_rig.h"
#include "tests/channel/cuda/import_messages.h"
#include "tests/support/catch.h"
#include "tests/support/child_test_case.h"

namespace latentd::channel::testing {
namespace {

using latentd::testing::ChildTestCase;

// One importing child. Thread: any.
class ImportProcess {
 public:
  explicit ImportProcess(std::pair<UnixSocket, UnixSocket> ends)
      : child_("channel import child", {ends.second.fd()}), socket_(std::move(ends.first)) {}

  // Takes the pool unless this child has it already.
  bool claim(const std::string& handle) {
    MutexLock lock(mutex_);
    return handles_.insert(handle).second;
  }
  void forget(const std::string& handle) {
    MutexLock lock(mutex_);
    handles_.erase(handle);
  }
  int64_t nextPool() {
    MutexLock lock(mutex_);
    return next_pool_++;
  }

  StatusOr<ImportMessage> call(const ImportMessage& request, const std::vector<int>& fds = {}) {
    MutexLock lock(mutex_);
    LATENTD_RETURN_IF_ERROR(socket_.send(request.encode(), fds).status());
    Frame frame;
    const Clock::TimePoint deadline = soon();
    for (;;) {
      LATENTD_ASSIGN_OR_RETURN(const UnixSocket::Received received, socket_.receive(frame, kImportMessageMax));
      if (received == UnixSocket::Received::kFrame) break;
      if (received == UnixSocket::Received::kClosed || std::chrono::steady_clock::now() > deadline) {
        return makeStatus(absl::StatusCode::kUnavailable, "the importing process is gone");
      }
      pollfd waited{socket_.fd(), POLLIN, 0};
      ::poll(&waited, 1, 1000);
    }
    ImportMessage reply = ImportMessage::decode(frame.bytes);
    const auto code = static_cast<absl::StatusCode>(reply.numbers.at(0));
    if (code != absl::StatusCode::kOk) return makeStatus(code, reply.bytes);
    return reply;
  }

 private:
  ChildTestCase child_;
  Mutex mutex_;
  UnixSocket socket_ GUARDED_BY(mutex_);
  std::set<std::string> handles_ GUARDED_BY(mutex_);
  int64_t next_pool_ GUARDED_BY(mutex_) = 0;
};

class ElsewherePool final : public ImportedPool {
 public:
  ElsewherePool(std::shared_ptr<ImportProcess> process, int64_t id, std::string handle, const PoolLayout& layout,
                ShmRegion mirror, std::string attachment)
      : process_(std::move(process)),
        id_(id),
        handle_(std::move(handle)),
        layout_(layout),
        mirror_(std::move(mirror)),
        attachment_(std::move(attachment)) {}

  ~ElsewherePool() override {
    process_->call({{int64_t(ImportCall::kDrop), id_}, {}}).status().IgnoreError();
    process_->forget(handle_);
  }

  std::string attachment() const override { return attachment_; }

  Status read(SlotIndex slot, uint64_t offset, std::span<const CopyRegion> regions, const TensorView& target) override {
    const auto element = static_cast<int64_t>(byteSize(target.dtype));
    for (const CopyRegion& region : regions) {
      ImportMessage request{
          {int64_t(ImportCall::kRead), id_, slot.value, int64_t(offset), int64_t(target.dtype), region.source_offset},
          {}};
      appendList(request.numbers, region.extents);
      appendList(request.numbers, region.source_strides);
      appendList(request.numbers, region.target_strides);
      LATENTD_RETURN_IF_ERROR(process_->call(request).status());
      copyStrided(static_cast<std::byte*>(target.data) + region.target_offset * element, region.target_strides,
                  mirror_.data() + layout_.bytes, region.target_strides, region.extents, size_t(element));
    }
    return absl::OkStatus();
  }

  bool lends() const override { return true; }

  StatusOr<void*> borrow(SlotIndex slot, uint64_t offset) override {
    LATENTD_RETURN_IF_ERROR(
        process_->call({{int64_t(ImportCall::kBorrow), id_, slot.value, int64_t(offset)}, {}}).status());
    return mirror_.data() + slot.value * layout_.slot_stride + offset;
  }

  Status complete(SlotIndex slot) override {
    return process_->call({{int64_t(ImportCall::kComplete), id_, slot.value}, {}}).status();
  }

  StatusOr<bool> tryUnmap() override {
    LATENTD_ASSIGN_OR_RETURN(const ImportMessage reply, process_->call({{int64_t(ImportCall::kUnmap), id_}, {}}));
    return reply.numbers.at(1) != 0;
  }

 private:
  const std::shared_ptr<ImportProcess> process_;  // owners: pools, and the backend
  const int64_t id_;
  const std::string handle_;
  const PoolLayout layout_;
  ShmRegion mirror_;
  const std::string attachment_;
};

class ElsewhereBackend final : public UnixBackend {
 public:
  // A first child is ready before any case begins: a context takes longer to make than some cases wait for a peer.
  explicit ElsewhereBackend(std::shared_ptr<Backend> inner) : inner_(std::move(inner)) {
    auto process = processFor("");
    REQUIRE(process.ok());
    REQUIRE((*process)->call({{int64_t(ImportCall::kDrop), 0}, {}}).status().ToString() == "OK");
  }

  std::string_view transport() const override { return inner_->transport(); }
  bool asynchronous() const override { return inner_->asynchronous(); }
  StatusOr<std::unique_ptr<ExportedPool>> createPool(const std::string& name, const PoolLayout& layout) override {
    return inner_->createPool(name, layout);
  }

  StatusOr<std::shared_ptr<ImportedPool>> importPool(const std::string& handle, std::vector<UniqueFd>,
                                                     const PoolLayout& layout) override {
    LATENTD_ASSIGN_OR_RETURN(const std::shared_ptr<ImportProcess> process, processFor(handle));
    LATENTD_ASSIGN_OR_RETURN(ShmRegion mirror, ShmRegion::create("latentd-mirror", layout.bytes + kReadWindowBytes));
    const int64_t id = process->nextPool();
    const ImportMessage request{{int64_t(ImportCall::kImport), id, layout.slots, int64_t(layout.slot_stride),
                                 int64_t(layout.bytes), layout.one_shot},
                                handle};
    StatusOr<ImportMessage> reply = process->call(request, {mirror.fd()});
    if (!reply.ok()) process->forget(handle);
    LATENTD_RETURN_IF_ERROR(reply.status());
    return std::shared_ptr<ImportedPool>(
        std::make_shared<ElsewherePool>(process, id, handle, layout, std::move(mirror), std::move(reply->bytes)));
  }

 private:
  StatusOr<std::shared_ptr<ImportProcess>> processFor(const std::string& handle) {
    MutexLock lock(mutex_);
    for (const auto& process : processes_) {
      if (process->claim(handle)) return process;
    }
    LATENTD_ASSIGN_OR_RETURN(auto ends, UnixSocket::pair());
    processes_.push_back(std::make_shared<ImportProcess>(std::move(ends)));
    processes_.back()->claim(handle);
    return processes_.back();
  }

  const std::shared_ptr<Backend> inner_;
  Mutex mutex_;
  std::vector<std::shared_ptr<ImportProcess>> processes_ GUARDED_BY(mutex_);
};

}  // namespace

std::shared_ptr<Backend> importElsewhere(std::shared_ptr<Backend> inner) {
  return std::make_shared<ElsewhereBackend>(std::move(inner));
}

}  // namespace latentd::channel::testing
