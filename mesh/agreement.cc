#include "mesh/agreement.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <type_traits>

#include <ATen/ops/empty.h>

namespace latentd::mesh {
namespace {

struct Note {
  int32_t code = 0;
  char text[252] = {};
  Token token{};
};
static_assert(sizeof(Note) == 320 && std::is_trivially_copyable_v<Note>, "the bytes travel: none is left to chance");

Note noteOf(const StatusOr<Token>& mine) {
  Note note;
  if (mine.ok()) {
    note.token = *mine;
    return note;
  }
  note.code = static_cast<int32_t>(mine.status().code());
  const std::string text = messageOf(mine.status());
  std::memcpy(note.text, text.data(), std::min(text.size(), sizeof(note.text) - 1));
  return note;
}

}  // namespace

StatusOr<std::vector<Token>> exchangeTokens(ProcessGroup& group, const StatusOr<Token>& mine) {
  const Note note = noteOf(mine);
  at::Tensor given = at::empty({static_cast<int64_t>(sizeof(Note))}, at::kByte);
  std::memcpy(given.mutable_data_ptr(), &note, sizeof(Note));
  at::Tensor all = at::empty({group.size() * given.numel()}, given.options().device(group.device()));
  group.allGather(all, given.to(group.device())).wait();
  all = all.cpu();
  std::vector<Note> notes(static_cast<size_t>(group.size()));
  std::memcpy(notes.data(), all.const_data_ptr(), all.nbytes());
  std::vector<Token> tokens;
  for (size_t rank = 0; rank < notes.size(); ++rank) {
    if (notes[rank].code != 0) {
      return makeStatus(static_cast<absl::StatusCode>(notes[rank].code),
                        "rank " + std::to_string(group.members()[rank].value) + ": " + notes[rank].text);
    }
    tokens.push_back(notes[rank].token);
  }
  return tokens;
}

Status agree(ProcessGroup& group, const Status& mine) {
  return exchangeTokens(group, mine.ok() ? StatusOr<Token>(Token{}) : mine).status();
}

}  // namespace latentd::mesh
