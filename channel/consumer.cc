#include <string>
#include <utility>

#include "channel/channel.h"
#include "channel/consumer_core.h"
#include "runtime/base/check.h"

namespace latentd::channel {
namespace {

// The caller's end of a ConsumerCore: leaves the loop when it dies.
class ConsumerEndpoint final : public Consumer {
 public:
  explicit ConsumerEndpoint(std::shared_ptr<ConsumerCore> core) : core_(std::move(core)) {}
  ~ConsumerEndpoint() override {
    core_->close();
    core_->detach();
  }

  StatusOr<ArtifactTree> receive(SequenceNumber sequence, Allocator& allocator, const WaitOptions& wait) override {
    return core_->receive(sequence, allocator, wait);
  }
  StatusOr<HeldArtifact> take(SequenceNumber sequence, Allocator& allocator, const WaitOptions& wait) override {
    return core_->take(sequence, allocator, wait);
  }
  StatusOr<HeldArtifact> borrow(SequenceNumber sequence, const WaitOptions& wait) override {
    return core_->borrow(sequence, wait);
  }
  Status discard(SequenceNumber sequence, std::string_view reason, std::function<void(const Status&)> done) override {
    return core_->discard(sequence, reason, std::move(done));
  }
  Status discardAndWait(SequenceNumber sequence, std::string_view reason, const WaitOptions& wait) override {
    return core_->discardAndWait(sequence, reason, wait);
  }
  void noteProgress() override { core_->noteProgress(); }
  ConsumerStats stats() const override { return core_->stats(); }
  void close() override { core_->close(); }
  Status join(Clock::TimePoint deadline) override { return core_->join(deadline); }

 private:
  const std::shared_ptr<ConsumerCore> core_;  // owners: this, held artifacts, and callbacks under way in the loop
};

}  // namespace

StatusOr<std::unique_ptr<Consumer>> openConsumer(const ChannelSpec& spec, Rank rank,
                                                 const std::vector<std::string>& addresses, Device device,
                                                 const ChannelContext& context, ConsumerCallbacks callbacks) {
  LATENTD_CHECK(context.backend != nullptr && context.loop != nullptr && context.clock != nullptr,
                "a channel needs a backend, a loop and a clock");
  LATENTD_RETURN_IF_ERROR(validate(spec));
  if (rank.value >= spec.consumer_ranks || addresses.size() < publishingRanks(spec)) {
    return makeStatus(absl::StatusCode::kInvalidArgument,
                      "consumer rank " + std::to_string(rank.value) + " of " + std::to_string(spec.consumer_ranks) +
                          " with " + std::to_string(addresses.size()) + " addresses on " + spec.edge + ", which has " +
                          std::to_string(publishingRanks(spec)) + " publishing ranks");
  }
  auto core = std::make_shared<ConsumerCore>(spec, rank, device, context, std::move(callbacks));
  const Status connected = core->connect(addresses);
  if (!connected.ok()) {
    core->detach();
    return connected;
  }
  return std::unique_ptr<Consumer>(std::make_unique<ConsumerEndpoint>(std::move(core)));
}

}  // namespace latentd::channel
