#include "channel/record.h"

#include <algorithm>
#include <string>
#include <utility>

#include "channel/limits.h"
#include "channel/tree_codec.h"

namespace latentd::channel {
namespace {

Status outOfBounds(const std::string& what, uint64_t value, uint64_t most) {
  return makeStatus(absl::StatusCode::kInvalidArgument,
                    "publication: " + what + " is " + std::to_string(value) + ", at most " + std::to_string(most));
}

StatusOr<SlotRef> slotRef(RowIndex row, uint32_t slot, int64_t generation, const ChannelSpec& spec) {
  if (slot >= spec.slots) return outOfBounds("slot", slot, spec.slots - 1);
  return SlotRef{row, SlotIndex(slot), Generation(generation)};
}

StatusOr<TokenPart> parseTokenPart(const v1::TokenPart& message, const TensorDesc& desc) {
  if (message.cut() > static_cast<uint32_t>(kTokenCutMax)) {
    return outOfBounds("token cut", message.cut(), static_cast<uint64_t>(kTokenCutMax));
  }
  const TokenPart part{message.dim(),
                       {message.frames(), message.rows(), message.columns()},
                       static_cast<TokenCut>(message.cut()),
                       {message.begin(), message.end()}};
  LATENTD_RETURN_IF_ERROR(annotate(checkTokenPart(part, desc.shape()), "publication"));
  return part;
}

// A pooled leaf's slot is added to `slots`.
StatusOr<RecordShape::Leaf> parseLeaf(const v1::Leaf& message, const ChannelSpec& spec, uint64_t buffer_bytes,
                                      std::vector<SlotRef>& slots) {
  RecordShape::Leaf leaf;
  LATENTD_ASSIGN_OR_RETURN(leaf.desc, TensorDesc::parse(message.desc()));
  leaf.whole = message.whole();
  if (message.has_tokens()) {
    LATENTD_ASSIGN_OR_RETURN(leaf.tokens, parseTokenPart(message.tokens(), leaf.desc));
  }
  switch (message.place_case()) {
    case v1::Leaf::kPooled: {
      const v1::PooledPlace& place = message.pooled();
      if (place.profile() >= spec.profiles_max) return outOfBounds("profile", place.profile(), spec.profiles_max);
      leaf.row = RowIndex(place.profile());
      leaf.slot_at = slots.size();
      LATENTD_ASSIGN_OR_RETURN(const SlotRef ref, slotRef(*leaf.row, place.slot(), place.generation(), spec));
      slots.push_back(ref);
      return leaf;
    }
    case v1::Leaf::kUnpooledOffset:
      if (leaf.desc.bytes() > buffer_bytes || message.unpooled_offset() > buffer_bytes - leaf.desc.bytes() ||
          message.unpooled_offset() % kLeafAlignment != 0) {
        return outOfBounds("unpooled_offset", message.unpooled_offset(), buffer_bytes);
      }
      leaf.unpooled_offset = message.unpooled_offset();
      return leaf;
    case v1::Leaf::kAbsent:
      return leaf;
    case v1::Leaf::PLACE_NOT_SET:
      break;
  }
  return makeStatus(absl::StatusCode::kInvalidArgument, "publication: a leaf has no place");
}

void writeTokenPart(const TokenPart& part, v1::TokenPart& message) {
  message.set_dim(part.dim);
  message.set_frames(part.grid.frames);
  message.set_rows(part.grid.rows);
  message.set_columns(part.grid.columns);
  message.set_cut(static_cast<uint32_t>(part.cut));
  message.set_begin(part.held.begin);
  message.set_end(part.held.end);
}

void writeLeaf(const RecordShape::Leaf& leaf, const Record& record, v1::Leaf& message) {
  leaf.desc.write(*message.mutable_desc());
  message.set_whole(leaf.whole);
  if (leaf.tokens) writeTokenPart(*leaf.tokens, *message.mutable_tokens());
  if (leaf.row) {
    const SlotRef& ref = record.slots[leaf.slot_at];
    v1::PooledPlace& place = *message.mutable_pooled();
    place.set_profile(ref.row.value);
    place.set_slot(ref.slot.value);
    place.set_generation(ref.generation.value);
  } else if (leaf.unpooled_offset) {
    message.set_unpooled_offset(*leaf.unpooled_offset);
  } else {
    message.set_absent(true);
  }
}

}  // namespace

std::vector<SlotRef> Record::words() const {
  std::vector<SlotRef> words = slots;
  if (ticket) words.push_back(ticket->ref);
  return words;
}

void writeRecord(const Record& record, const std::string& ticket_handle, v1::Publication& message) {
  message.set_sequence(record.sequence.value);
  for (const RecordShape::Leaf& leaf : record.shape->leaves)
    writeLeaf(leaf, record, *message.add_leaves());
  *message.mutable_tree() = record.shape->tree;
  if (!record.ticket) return;
  v1::Ticket& ticket = *message.mutable_ticket();
  ticket.set_index(record.ticket->ref.slot.value);
  ticket.set_generation(record.ticket->ref.generation.value);
  ticket.set_bytes(record.ticket->bytes);
  ticket.set_handle(ticket_handle);
}

void writeAgain(const Record& record, v1::Again& message) {
  message.set_sequence(record.sequence.value);
  for (const SlotRef& ref : record.slots) {
    message.add_slots(ref.slot.value);
    message.add_generations(ref.generation.value);
  }
}

StatusOr<Record> parseRecord(const v1::Publication& message, const ChannelSpec& spec) {
  Record record;
  record.sequence = SequenceNumber(message.sequence());
  if (message.has_ticket()) {
    const v1::Ticket& ticket = message.ticket();
    if (ticket.index() >= kTickets) return outOfBounds("ticket", ticket.index(), kTickets - 1);
    if (ticket.bytes() > kTensorBytesMax) return outOfBounds("ticket bytes", ticket.bytes(), kTensorBytesMax);
    record.ticket = {{RowIndex(spec.profiles_max), SlotIndex(ticket.index()), Generation(ticket.generation())},
                     ticket.bytes(),
                     nullptr};
  }
  const auto leaf_count = static_cast<uint64_t>(message.leaves_size());
  if (leaf_count > kLeavesMax) return outOfBounds("number of leaves", leaf_count, kLeavesMax);
  auto shape = std::make_shared<RecordShape>();
  const uint64_t buffer_bytes = record.ticket ? record.ticket->bytes : 0;
  for (const v1::Leaf& leaf : message.leaves()) {
    LATENTD_ASSIGN_OR_RETURN(RecordShape::Leaf parsed, parseLeaf(leaf, spec, buffer_bytes, record.slots));
    shape->leaves.push_back(std::move(parsed));
  }
  LATENTD_RETURN_IF_ERROR(validateTree(message.tree(), shape->leaves.size()));
  shape->tree = message.tree();
  record.shape = std::move(shape);
  if (record.slots.empty() && !record.ticket) {
    return makeStatus(absl::StatusCode::kInvalidArgument, "publication: neither a slot nor a ticket to acknowledge");
  }
  return record;
}

StatusOr<Record> parseAgain(const v1::Again& message, std::shared_ptr<const RecordShape> last,
                            const ChannelSpec& spec) {
  if (last == nullptr) {
    return makeStatus(absl::StatusCode::kInvalidArgument, "publication: there is none that it could be like");
  }
  const auto pooled = std::count_if(last->leaves.begin(), last->leaves.end(),
                                    [](const RecordShape::Leaf& leaf) { return leaf.row.has_value(); });
  if (message.slots_size() != pooled || message.generations_size() != pooled) {
    return makeStatus(absl::StatusCode::kInvalidArgument,
                      "publication: " + std::to_string(message.slots_size()) + " slots and " +
                          std::to_string(message.generations_size()) + " generations, the last one had " +
                          std::to_string(pooled));
  }
  Record record;
  record.sequence = SequenceNumber(message.sequence());
  for (const RecordShape::Leaf& leaf : last->leaves) {
    if (!leaf.row) continue;
    const auto place = static_cast<int>(leaf.slot_at);
    LATENTD_ASSIGN_OR_RETURN(const SlotRef ref,
                             slotRef(*leaf.row, message.slots(place), message.generations(place), spec));
    record.slots.push_back(ref);
  }
  record.shape = std::move(last);
  return record;
}

PoolLayout poolLayout(const TensorDesc& desc, const ChannelSpec& spec) {
  const uint64_t stride = roundUp(desc.bytes(), kSlotAlignment);
  return {desc.device(), spec.slots, stride, roundUp(stride * spec.slots, kPoolGranularity), spec.consumer_ranks};
}

PoolLayout oneShotLayout(Device device, uint64_t bytes, const ChannelSpec& spec) {
  const uint64_t stride = roundUp(bytes, kSlotAlignment);
  return {device, 1, stride, stride, spec.consumer_ranks, true};
}

}  // namespace latentd::channel
