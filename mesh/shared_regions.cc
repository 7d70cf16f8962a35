#include "mesh/shared_regions.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <type_traits>
#include <utility>

#include <ATen/ops/empty.h>

#include "runtime/base/unique_fd.h"

namespace latentd::mesh {
namespace {

// What a rank tells the others: how its part went, and where its region is.
struct Note {
  int32_t code = 0;
  int32_t process = 0;
  int32_t descriptor = -1;
  int32_t unused = 0;  // the bytes travel: none is left to chance
  uint64_t bytes = 0;
  char text[232] = {};
};
static_assert(sizeof(Note) == 256 && std::is_trivially_copyable_v<Note>);

Note noteOf(const Status& status) {
  Note note;
  note.code = static_cast<int32_t>(status.code());
  const std::string text = messageOf(status);
  std::memcpy(note.text, text.data(), std::min(text.size(), sizeof(note.text) - 1));
  return note;
}

std::vector<Note> exchange(ProcessGroup& group, const Note& mine) {
  at::Tensor given = at::empty({static_cast<int64_t>(sizeof(Note))}, at::kByte);
  std::memcpy(given.mutable_data_ptr(), &mine, sizeof(Note));
  at::Tensor all = at::empty({group.size() * given.numel()}, at::kByte);
  group.allGather(all, given).wait();
  std::vector<Note> notes(static_cast<size_t>(group.size()));
  std::memcpy(notes.data(), all.const_data_ptr(), all.nbytes());
  return notes;
}

Status firstProblem(const ProcessGroup& group, const std::vector<Note>& notes) {
  for (size_t rank = 0; rank < notes.size(); ++rank) {
    if (notes[rank].code == 0) continue;
    return makeStatus(static_cast<absl::StatusCode>(notes[rank].code),
                      "rank " + std::to_string(group.members()[rank].value) + ": " + notes[rank].text);
  }
  return absl::OkStatus();
}

// Through /proc: no name in a folder, which a killed rank would leave behind, and no socket to each peer.
StatusOr<ShmRegion> mapRegion(const Note& note, uint64_t bytes) {
  if (note.bytes != bytes) {
    return absl::InvalidArgumentError("a peer shares " + std::to_string(note.bytes) + " bytes, this rank " +
                                      std::to_string(bytes));
  }
  const std::string path = "/proc/" + std::to_string(note.process) + "/fd/" + std::to_string(note.descriptor);
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!fd.valid()) return errnoStatus(errno, "opening " + path);
  return ShmRegion::map(std::move(fd), bytes);
}

}  // namespace

Status agree(ProcessGroup& group, const Status& mine) { return firstProblem(group, exchange(group, noteOf(mine))); }

StatusOr<std::vector<ShmRegion>> shareRegions(ProcessGroup& group, const std::string& name, uint64_t bytes,
                                              const std::function<void(const ShmRegion&)>& fill) {
  StatusOr<ShmRegion> own = ShmRegion::create(name, bytes);
  Note note = noteOf(own.status());
  if (own.ok()) {
    fill(*own);
    note.process = ::getpid();
    note.descriptor = own->fd();
    note.bytes = bytes;
  }
  const std::vector<Note> notes = exchange(group, note);
  LATENTD_RETURN_IF_ERROR(firstProblem(group, notes));
  std::vector<ShmRegion> regions(notes.size());
  Status mapped;
  for (size_t rank = 0; rank < notes.size() && mapped.ok(); ++rank) {
    if (static_cast<int>(rank) == group.rank()) {
      regions[rank] = *std::move(own);
      continue;
    }
    StatusOr<ShmRegion> region = mapRegion(notes[rank], bytes);
    mapped = region.status();
    if (region.ok()) regions[rank] = *std::move(region);
  }
  LATENTD_RETURN_IF_ERROR(agree(group, mapped));
  return regions;
}

}  // namespace latentd::mesh
