#include "channel/record.h"

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

StatusOr<SlotRef> parsePlace(const v1::PooledPlace& place, const ChannelSpec& spec) {
  if (place.profile() >= spec.profiles_max) return outOfBounds("profile", place.profile(), spec.profiles_max);
  if (place.slot() >= spec.slots) return outOfBounds("slot", place.slot(), spec.slots - 1);
  return SlotRef{RowIndex(place.profile()), SlotIndex(place.slot()), Generation(place.generation())};
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

StatusOr<Record::Leaf> parseLeaf(const v1::Leaf& message, const ChannelSpec& spec, uint64_t buffer_bytes) {
  Record::Leaf leaf;
  LATENTD_ASSIGN_OR_RETURN(leaf.desc, TensorDesc::parse(message.desc()));
  leaf.whole = message.whole();
  if (message.has_tokens()) {
    LATENTD_ASSIGN_OR_RETURN(leaf.tokens, parseTokenPart(message.tokens(), leaf.desc));
  }
  switch (message.place_case()) {
    case v1::Leaf::kPooled: {
      LATENTD_ASSIGN_OR_RETURN(leaf.slot, parsePlace(message.pooled(), spec));
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

}  // namespace

std::vector<SlotRef> Record::words() const {
  std::vector<SlotRef> words;
  for (const Leaf& leaf : leaves) {
    if (leaf.slot) words.push_back(*leaf.slot);
  }
  if (ticket) words.push_back(ticket->ref);
  return words;
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
  for (const v1::Leaf& leaf : message.leaves()) {
    LATENTD_ASSIGN_OR_RETURN(Record::Leaf parsed, parseLeaf(leaf, spec, record.ticket ? record.ticket->bytes : 0));
    record.leaves.push_back(std::move(parsed));
  }
  LATENTD_RETURN_IF_ERROR(validateTree(message.tree(), record.leaves.size()));
  record.tree = message.tree();
  if (record.words().empty()) {
    return makeStatus(absl::StatusCode::kInvalidArgument, "publication: neither a slot nor a ticket to acknowledge");
  }
  return record;
}

PoolLayout poolLayout(const TensorDesc& desc, uint32_t slots) {
  const uint64_t stride = roundUp(desc.bytes(), kSlotAlignment);
  return {desc.device(), slots, stride, roundUp(stride * slots, kPoolGranularity)};
}

PoolLayout oneShotLayout(Device device, uint64_t bytes) {
  const uint64_t stride = roundUp(bytes, kSlotAlignment);
  return {device, 1, stride, stride, true};
}

}  // namespace latentd::channel
