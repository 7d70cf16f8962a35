#pragma once

#include <cstdint>
#include <memory>

#include "channel/channel.h"
#include "runtime/base/status.h"

namespace latentd::worker {

// The open ends of channels, as the executor sees them. Thread: any.
class ChannelTable {
 public:
  virtual ~ChannelTable() = default;
  // Shared by the table and whoever is inside a call on it while the channel is retired. NOT_FOUND once it is.
  virtual StatusOr<std::shared_ptr<channel::Producer>> producer(uint32_t channel_id) = 0;
  virtual StatusOr<std::shared_ptr<channel::Consumer>> consumer(uint32_t channel_id) = 0;
  // To every open channel: this rank moves.
  virtual void noteProgress() = 0;
  // Tells the supervisor what was counted so far. Any thread.
  virtual void postFigures() = 0;
};

}  // namespace latentd::worker
