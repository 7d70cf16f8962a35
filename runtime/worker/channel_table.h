#pragma once

#include <cstdint>
#include <memory>

#include "channel/channel.h"
#include "proto/worker.pb.h"
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
  // What was counted so far, for WorkerEvent::edges. Not for a caller that holds what a channel's calls wait for.
  virtual void fillFigures(google::protobuf::RepeatedPtrField<internal::v1::EdgeStats>& edges) = 0;
};

}  // namespace latentd::worker
