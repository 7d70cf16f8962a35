#pragma once

#include <array>
#include <cstdint>
#include <list>
#include <memory>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "mesh/process_group.h"
#include "mesh/scatter_memory.h"
#include "runtime/base/status.h"

namespace latentd::mesh {

// Which of an attention's inputs a scatter moves.
enum class HeadTag { kQuery, kKey, kValue };
inline constexpr std::array kHeadTags{HeadTag::kQuery, HeadTag::kKey, HeadTag::kValue};

// What the ranks of a round give each: [B, S_local, H, D].
struct HeadShare {
  std::vector<int64_t> shape;
  at::ScalarType dtype = at::kFloat;

  friend bool operator==(const HeadShare&, const HeadShare&) = default;
};

// Ulysses' scatter by direct writes: each rank copies its rows of a peer's heads from where they are to where the peer
// reads them, and nothing is packed or unpacked. Targets have their final layout, [B, S_local * size, H / size, D], and
// are kept: one for each tag and share. Ranks write into each other's by rounds, one for the scatters that share a
// hand-shake: of an attention's Q, K and V. What memory that is, and who waits, is ScatterMemory's.
//
//   begin(share)        all ranks; once its targets are there, without a message
//   submit(tag, x)      copies at once; each tag at most once
//   target(tag)         the result, once any of the submitted was waited for, until the next begin()
//
// Ranks of one host. Owner: a HeadScatter; the process group outlives it. Thread: one; end()
// from any. States: open -> ended. Failure: begin() returns why a share has no targets, which is the same on all ranks
// and before anything is moved; what fails inside a round ends the mesh, as any operation of the group does.
class DirectScatter {
 public:
  // Targets that are kept; the ones unused for longest go first, on all ranks alike as all do the same.
  static constexpr size_t kTargetsMax = 12;

  // The same outcome on all ranks. Throws CommunicationError.
  static StatusOr<std::unique_ptr<DirectScatter>> make(ProcessGroup& group);
  ~DirectScatter();
  DirectScatter(const DirectScatter&) = delete;
  DirectScatter& operator=(const DirectScatter&) = delete;

  Status begin(const HeadShare& share);
  // x: any strides.
  Pending submit(HeadTag tag, const at::Tensor& x);
  const at::Tensor& target(HeadTag tag) const;

  // Whoever waits for a round, here or on a peer, is told.
  void end() noexcept { memory_->end(); }

 private:
  using Targets = std::array<at::Tensor, kHeadTags.size()>;  // by tag
  // Of one share.
  struct TargetSet {
    HeadShare share;
    std::vector<at::Tensor> regions;  // by rank, this one's own among them; none: `refused` says why
    std::vector<Targets> of_rank;     // in the regions
    Status refused;
  };
  class Written;
  DirectScatter(ProcessGroup& group, std::unique_ptr<ScatterMemory> memory)
      : group_(group), memory_(std::move(memory)) {}

  // In front of the list.
  TargetSet& targetsOf(const HeadShare& share);
  Status allocate(TargetSet& set);
  void retireOldest();
  void finishRound(uint32_t round);

  ProcessGroup& group_;
  std::unique_ptr<ScatterMemory> memory_;
  std::list<TargetSet> sets_;  // the one used last in front
  uint32_t round_ = 0;
  uint32_t finished_ = 0;  // the last round whose results are here
};

}  // namespace latentd::mesh
