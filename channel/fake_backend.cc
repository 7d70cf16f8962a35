#include "channel/fake_backend.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <map>
#include <new>
#include <utility>
#include <vector>

#include "channel/fake_link.h"
#include "channel/host_pool.h"
#include "channel/limits.h"
#include "channel/pool_layout.h"
#include "runtime/base/check.h"

namespace latentd::channel {
namespace {

// Zeroed, page-aligned heap memory that counts itself.
class FakeMemory {
 public:
  FakeMemory(uint64_t bytes, std::shared_ptr<std::atomic<uint64_t>> total)
      : bytes_(bytes), total_(std::move(total)), data_(static_cast<std::byte*>(::operator new(bytes, kAlignment))) {
    std::fill_n(data_, bytes_, std::byte{0});
    total_->fetch_add(bytes_);
  }
  ~FakeMemory() {
    ::operator delete(data_, kAlignment);
    total_->fetch_sub(bytes_);
  }
  FakeMemory(const FakeMemory&) = delete;
  FakeMemory& operator=(const FakeMemory&) = delete;

  std::span<std::byte> span() const { return {data_, bytes_}; }

 private:
  static constexpr std::align_val_t kAlignment{kSlotAlignment};
  const uint64_t bytes_;
  const std::shared_ptr<std::atomic<uint64_t>> total_;  // owners: the backend and all its memory
  std::byte* const data_;
};

class FakeControl final : public ControlMemory {
 public:
  FakeControl(std::shared_ptr<FakeMemory> memory, std::string name)
      : memory_(std::move(memory)), name_(std::move(name)) {}
  std::span<std::byte> memory() override { return memory_->span(); }
  Handle handle() const override { return {name_, {}, memory_}; }

 private:
  const std::shared_ptr<FakeMemory> memory_;  // owners: exporter and importers
  const std::string name_;
};

// Connections that wait to be accepted.
struct Backlog {
  Mutex mutex;
  std::deque<std::unique_ptr<Link>> waiting GUARDED_BY(mutex);
  UniqueFd ready{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK | EFD_SEMAPHORE)};
};

class FakeListener final : public Listener {
 public:
  explicit FakeListener(std::shared_ptr<Backlog> backlog) : backlog_(std::move(backlog)) {}

  StatusOr<std::unique_ptr<Link>> accept() override {
    MutexLock lock(backlog_->mutex);
    uint64_t ignored;
    if (::read(backlog_->ready.get(), &ignored, sizeof(ignored)) < 0) return std::unique_ptr<Link>();
    std::unique_ptr<Link> link = std::move(backlog_->waiting.front());
    backlog_->waiting.pop_front();
    return link;
  }
  int pollFd() const override { return backlog_->ready.get(); }

 private:
  const std::shared_ptr<Backlog> backlog_;  // owners: this; the backend looks it up weakly
};

class FakeBackendImpl final : public FakeBackend {
 public:
  std::string_view transport() const override { return "fake"; }
  bool asynchronous() const override { return true; }  // so that tests see every message

  StatusOr<std::unique_ptr<Listener>> listen(const std::string& address, uint32_t) override {
    MutexLock lock(mutex_);
    if (!listeners_[address].expired()) {
      return makeStatus(absl::StatusCode::kAlreadyExists, "address " + address + " is in use: choose another");
    }
    auto backlog = std::make_shared<Backlog>();
    listeners_[address] = backlog;
    return std::unique_ptr<Listener>(std::make_unique<FakeListener>(std::move(backlog)));
  }

  StatusOr<std::unique_ptr<Link>> connect(const std::string& address) override {
    MutexLock lock(mutex_);
    const std::shared_ptr<Backlog> backlog = listeners_[address].lock();
    if (backlog == nullptr) return makeStatus(absl::StatusCode::kUnavailable, "nobody listens on " + address);
    auto connection = std::make_shared<FakeConnection>();
    std::erase_if(connections_, [](const auto& weak) { return weak.expired(); });
    connections_.push_back(connection);
    MutexLock waiting(backlog->mutex);
    backlog->waiting.push_back(std::make_unique<FakeLink>(connection, Side::kProducer));
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(backlog->ready.get(), &one, sizeof(one));
    return std::unique_ptr<Link>(std::make_unique<FakeLink>(std::move(connection), Side::kConsumer));
  }

  StatusOr<std::unique_ptr<ControlMemory>> createControl(const std::string&, uint64_t bytes) override {
    auto [memory, name] = allocate(bytes);
    return std::unique_ptr<ControlMemory>(std::make_unique<FakeControl>(std::move(memory), std::move(name)));
  }

  StatusOr<std::unique_ptr<ControlMemory>> importControl(const std::string& handle, std::vector<UniqueFd>,
                                                         uint64_t bytes) override {
    LATENTD_ASSIGN_OR_RETURN(std::shared_ptr<FakeMemory> memory, find(handle, bytes));
    return std::unique_ptr<ControlMemory>(std::make_unique<FakeControl>(std::move(memory), handle));
  }

  StatusOr<std::unique_ptr<ExportedPool>> createPool(const std::string&, const PoolLayout& layout) override {
    LATENTD_RETURN_IF_ERROR(checkSlotsFit(layout));
    LATENTD_RETURN_IF_ERROR(spend(pools_to_fail_, absl::StatusCode::kResourceExhausted));
    auto [memory, name] = allocate(layout.bytes);
    return makeHostPool(memory->span(), layout, Handle{name, {}, memory});
  }

  StatusOr<std::shared_ptr<ImportedPool>> importPool(const std::string& handle, std::vector<UniqueFd>,
                                                     const PoolLayout& layout) override {
    LATENTD_RETURN_IF_ERROR(checkSlotsFit(layout));
    LATENTD_RETURN_IF_ERROR(spend(imports_to_fail_, import_failure_));
    LATENTD_ASSIGN_OR_RETURN(const std::shared_ptr<FakeMemory> memory, find(handle, layout.bytes));
    return importHostPool(memory->span().first(layout.bytes), layout, memory);
  }

  void hold(Side from) override {
    forEach([from](FakeConnection& connection) { connection.hold(from, true); });
  }
  void release(Side from) override {
    forEach([from](FakeConnection& connection) { connection.hold(from, false); });
  }
  void block(Side from, bool blocked) override {
    forEach([from, blocked](FakeConnection& connection) { connection.block(from, blocked); });
  }
  void tamper(Side from, std::function<bool(std::string&)> change) override {
    forEach([from, &change](FakeConnection& connection) { connection.tamper(from, change); });
  }
  void inject(Side from, const std::string& bytes) override {
    forEach([from, &bytes](FakeConnection& connection) { connection.inject(from, bytes); });
  }
  void kill(Side who) override {
    forEach([who](FakeConnection& connection) { connection.close(who); });
  }
  void failPools(uint32_t count) override { pools_to_fail_ = count; }
  void failImports(uint32_t count, absl::StatusCode code) override {
    import_failure_ = code;
    imports_to_fail_ = count;
  }
  uint64_t bytesAllocated() const override { return *total_; }

 private:
  static Status spend(std::atomic<uint32_t>& count, absl::StatusCode code) {
    uint32_t left = count;
    while (left > 0) {
      if (count.compare_exchange_weak(left, left - 1)) {
        return makeStatus(code, "injected");
      }
    }
    return absl::OkStatus();
  }

  std::pair<std::shared_ptr<FakeMemory>, std::string> allocate(uint64_t bytes) {
    auto memory = std::make_shared<FakeMemory>(bytes, total_);
    MutexLock lock(mutex_);
    std::erase_if(memories_, [](const auto& entry) { return entry.second.expired(); });
    std::string name = std::to_string(next_memory_++);
    memories_[name] = memory;
    return {std::move(memory), std::move(name)};
  }

  StatusOr<std::shared_ptr<FakeMemory>> find(const std::string& name, uint64_t bytes) {
    MutexLock lock(mutex_);
    const auto found = memories_.find(name);
    std::shared_ptr<FakeMemory> memory = found == memories_.end() ? nullptr : found->second.lock();
    if (memory != nullptr && memory->span().size() >= bytes) return memory;
    return makeStatus(absl::StatusCode::kInvalidArgument,
                      "a peer's handle names no memory of " + std::to_string(bytes) + " bytes");
  }

  template <class Visit>
  void forEach(const Visit& visit) {
    std::vector<std::shared_ptr<FakeConnection>> alive;
    {
      MutexLock lock(mutex_);
      for (const auto& weak : connections_) {
        if (auto connection = weak.lock()) alive.push_back(std::move(connection));
      }
    }
    for (const auto& connection : alive)
      visit(*connection);
  }

  const std::shared_ptr<std::atomic<uint64_t>> total_ = std::make_shared<std::atomic<uint64_t>>(0);
  std::atomic<uint32_t> pools_to_fail_{0};
  std::atomic<uint32_t> imports_to_fail_{0};
  std::atomic<absl::StatusCode> import_failure_{absl::StatusCode::kResourceExhausted};
  mutable Mutex mutex_;
  std::map<std::string, std::weak_ptr<Backlog>> listeners_ GUARDED_BY(mutex_);
  std::vector<std::weak_ptr<FakeConnection>> connections_ GUARDED_BY(mutex_);
  std::map<std::string, std::weak_ptr<FakeMemory>> memories_ GUARDED_BY(mutex_);
  uint64_t next_memory_ GUARDED_BY(mutex_) = 0;
};

}  // namespace

std::shared_ptr<FakeBackend> FakeBackend::make() { return std::make_shared<FakeBackendImpl>(); }

}  // namespace latentd::channel
