#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "channel/backend.h"
#include "channel/control_block.h"
#include "proto/channel.pb.h"

namespace latentd::channel {

// What successive publications of one producer rank have in common, with every field in bounds: all but the slots. A
// value type, shared by their records.
struct RecordShape {
  struct Leaf {
    TensorDesc desc;
    bool whole = false;
    std::optional<TokenPart> tokens;
    // Pooled: its row, and its place among the pooled leaves.
    std::optional<RowIndex> row;
    size_t slot_at = 0;
    std::optional<uint64_t> unpooled_offset;  // into the one-shot buffer; neither: nothing to read from this rank
  };
  std::vector<Leaf> leaves;
  v1::TreeNode tree;
};

// A publication of one producer rank, as it tells it and as a consumer rank got it, with every field in bounds. A value
// type.
struct Record {
  struct Ticket {
    SlotRef ref;
    uint64_t bytes = 0;                    // of the one-shot buffer
    std::shared_ptr<ImportedPool> buffer;  // a consumer's; owners: this record, and a borrowed artifact
  };

  SequenceNumber sequence;
  std::shared_ptr<const RecordShape> shape;  // owners: records, plans, and both sides, of the last one
  std::vector<SlotRef> slots;                // of the pooled leaves
  std::optional<Ticket> ticket;
  Status import_status;  // why a consumer's one-shot buffer is not there

  // Of the pool, or of the one-shot buffer, that a leaf lies in.
  SlotIndex slotOf(const RecordShape::Leaf& leaf) const { return leaf.row ? slots[leaf.slot_at].slot : SlotIndex(0); }
  // Every word that this record is acknowledged by.
  std::vector<SlotRef> words() const;
};

// `ticket_handle`: of the one-shot buffer, if there is one.
void writeRecord(const Record& record, const std::string& ticket_handle, v1::Publication& message);
// For one whose shape is that of the record before it; without a ticket.
void writeAgain(const Record& record, v1::Again& message);

// INVALID_ARGUMENT for anything out of bounds: profiles, slots, offsets, extents, token parts, leaves, tree.
StatusOr<Record> parseRecord(const v1::Publication& message, const ChannelSpec& spec);
// The same for one like the last, whose shape is `last`.
StatusOr<Record> parseAgain(const v1::Again& message, std::shared_ptr<const RecordShape> last, const ChannelSpec& spec);

// Layout of a profile's pool, and of a one-shot buffer.
PoolLayout poolLayout(const TensorDesc& desc, const ChannelSpec& spec);
PoolLayout oneShotLayout(Device device, uint64_t bytes, const ChannelSpec& spec);

}  // namespace latentd::channel
