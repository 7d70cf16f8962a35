#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "channel/backend.h"
#include "channel/control_block.h"
#include "proto/channel.pb.h"

namespace latentd::channel {

// A publication that a consumer rank got from one producer rank, with every field in bounds. A value type.
struct Record {
  struct Leaf {
    TensorDesc desc;
    bool whole = false;
    std::optional<TokenPart> tokens;
    std::optional<SlotRef> slot;              // pooled
    std::optional<uint64_t> unpooled_offset;  // into the one-shot buffer; neither: nothing to read from this rank
  };
  struct Ticket {
    SlotRef ref;
    uint64_t bytes = 0;                    // of the one-shot buffer
    std::shared_ptr<ImportedPool> buffer;  // owners: this record, and a borrowed artifact
  };

  SequenceNumber sequence;
  std::vector<Leaf> leaves;
  v1::TreeNode tree;
  std::optional<Ticket> ticket;
  Status import_status;  // why the one-shot buffer is not there

  // Every word that this record is acknowledged by.
  std::vector<SlotRef> words() const;
};

void writeTokenPart(const TokenPart& part, v1::TokenPart& message);

// INVALID_ARGUMENT for anything out of bounds: profiles, slots, offsets, extents, token parts, leaves, tree.
StatusOr<Record> parseRecord(const v1::Publication& message, const ChannelSpec& spec);

// Layout of a profile's pool, and of a one-shot buffer.
PoolLayout poolLayout(const TensorDesc& desc, uint32_t slots);
PoolLayout oneShotLayout(Device device, uint64_t bytes);

}  // namespace latentd::channel
