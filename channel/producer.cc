#include <string>
#include <utility>

#include "channel/channel.h"
#include "channel/producer_core.h"
#include "runtime/base/check.h"

namespace latentd::channel {
namespace {

// The caller's end of a ProducerCore: leaves the loop when it dies.
class ProducerEndpoint final : public Producer {
 public:
  explicit ProducerEndpoint(std::shared_ptr<ProducerCore> core) : core_(std::move(core)) {}
  ~ProducerEndpoint() override {
    core_->close();
    core_->detach();
  }

  Status publish(SequenceNumber sequence, const ArtifactTree& tree, const WaitOptions& wait) override {
    return core_->publish(sequence, tree, wait);
  }
  Status abort(SequenceNumber sequence, const Status& reason) override { return core_->abort(sequence, reason); }
  void announce() override { core_->announce(); }
  void noteProgress() override { core_->noteProgress(); }
  bool bound() const override { return core_->bound(); }
  ProducerStats stats() const override { return core_->stats(); }
  void close() override { core_->close(); }
  Status join(Clock::TimePoint deadline) override { return core_->join(deadline); }

 private:
  const std::shared_ptr<ProducerCore> core_;  // owners: this, and callbacks under way in the loop
};

}  // namespace

StatusOr<std::unique_ptr<Producer>> openProducer(const ChannelSpec& spec, Rank rank, const std::string& address,
                                                 const ChannelContext& context, ProducerCallbacks callbacks) {
  LATENTD_CHECK(context.backend != nullptr && context.loop != nullptr && context.clock != nullptr,
                "a channel needs a backend, a loop and a clock");
  LATENTD_RETURN_IF_ERROR(validate(spec));
  if (rank.value >= spec.producer_ranks) {
    return makeStatus(absl::StatusCode::kInvalidArgument, "producer rank " + std::to_string(rank.value) + " of " +
                                                              std::to_string(spec.producer_ranks) + " on " + spec.edge);
  }
  auto core = std::make_shared<ProducerCore>(spec, rank, context, std::move(callbacks));
  Status listening;
  context.loop->runAndWait([&] { listening = core->listen(address); });
  if (!listening.ok()) {
    core->detach();
    return annotate(listening, "opening the producer of " + spec.edge);
  }
  return std::unique_ptr<Producer>(std::make_unique<ProducerEndpoint>(std::move(core)));
}

}  // namespace latentd::channel
