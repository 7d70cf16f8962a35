#include "runtime/worker/memory_limit.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>
#include <sys/resource.h>

#include <chrono>
#include <vector>

#include "runtime/worker/process_memory.h"
#include "tests/support/catch.h"
#include "tests/support/child_test_case.h"

namespace latentd::worker {
namespace {

using latentd::testing::ChildTestCase;

constexpr uint64_t kMebibyte = uint64_t{1} << 20;
constexpr uint64_t kRoom = 256 * kMebibyte;

at::Tensor allocate(uint64_t bytes) {
  return at::empty({static_cast<int64_t>(bytes)}, at::TensorOptions().dtype(at::kByte));
}

// Lets this process map so much more private memory.
void limitTo(uint64_t room) {
  REQUIRE_FALSE(hasMemoryLimit());
  rlimit limit{.rlim_cur = 1024 * 1024 * kMebibyte, .rlim_max = RLIM_INFINITY};
  REQUIRE(::setrlimit(RLIMIT_DATA, &limit) == 0);
  limit.rlim_cur -= mappableBytes() - room;
  REQUIRE(::setrlimit(RLIMIT_DATA, &limit) == 0);
}

// Tensors until none fits; every other one is freed again before the rest is: what a job leaves of a heap.
size_t fillWith(uint64_t bytes) {
  std::vector<at::Tensor> tensors;
  try {
    while (tensors.size() < kRoom / bytes + 1)
      tensors.push_back(allocate(bytes));
  } catch (const c10::OutOfMemoryError&) {
    CHECK(mappableBytes() >= MemoryLimit::kLibrariesBytes / 2);  // small ones between two looks may have taken some
    const size_t count = tensors.size();
    for (size_t index = 0; index < count; index += 2)
      tensors[index].reset();
    return count;
  }
  FAIL("no limit was met");
  return 0;
}

TEST_CASE("memory limit child", "[.][child]") {
  const auto limit = [] {
    limitTo(kRoom);
    return MemoryLimit::apply();
  }();
  REQUIRE(limit != nullptr);
  const uint64_t before = mappableBytes();
  for (const uint64_t bytes : {kMebibyte, 3 * kMebibyte, 20 * kMebibyte, 100 * kMebibyte}) {
    CAPTURE(bytes);
    const size_t count = fillWith(bytes);
    CHECK(count * bytes > kRoom - MemoryLimit::kLibrariesBytes - bytes - 8 * kMebibyte);
    // As much fits into it as did before, in one piece.
    CHECK(mappableBytes() + 8 * kMebibyte > before);
    CHECK(allocate(kRoom - MemoryLimit::kLibrariesBytes - 16 * kMebibyte).defined());
  }
  CHECK_THROWS_AS(allocate(kRoom), c10::OutOfMemoryError);
  CHECK(allocate(1000).defined());
}

TEST_CASE("memory limit: what was freed is there again, and libraries keep some of it", "[worker][process]") {
  ChildTestCase child("memory limit child");
  CHECK(child.wait(std::chrono::seconds(60)) == 0);
}

TEST_CASE("memory limit: without one nothing is changed", "[worker]") {
  const c10::Allocator* before = c10::GetCPUAllocator();
  CHECK(MemoryLimit::apply() == nullptr);
  CHECK(c10::GetCPUAllocator() == before);
}

}  // namespace
}  // namespace latentd::worker
