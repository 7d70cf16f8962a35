#include "channel/strided_copy.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "channel/limits.h"
#include "tests/channel/channel_rig.h"
#include "tests/channel/draw.h"
#include "tests/support/catch.h"

namespace latentd::channel::testing {
namespace {

constexpr std::byte kUntouched{0xee};

// Strides of a box whose dimensions lie in any order in memory, dense or with gaps. No two elements share a place.
std::vector<int64_t> drawStrides(std::mt19937& random, const std::vector<int64_t>& extents) {
  std::vector<size_t> order(extents.size());
  std::iota(order.begin(), order.end(), size_t{0});
  if (draw(random, 0, 1) == 0) {
    std::reverse(order.begin(), order.end());  // row-major
  } else {
    std::shuffle(order.begin(), order.end(), random);
  }
  std::vector<int64_t> strides(extents.size());
  int64_t stride = draw(random, 0, 3) == 0 ? 2 : 1;
  for (const size_t dimension : order) {
    strides[dimension] = stride;
    stride *= std::max<int64_t>(extents[dimension], 1);
    if (draw(random, 0, 3) == 0) stride += draw(random, 1, 3);
  }
  return strides;
}

// Elements from the first to the last of the box.
int64_t spanOf(const std::vector<int64_t>& extents, const std::vector<int64_t>& strides) {
  int64_t last = 0;
  for (size_t d = 0; d < extents.size(); ++d)
    last += std::max<int64_t>(extents[d] - 1, 0) * strides[d];
  return last + 1;
}

struct CopyCase {
  std::vector<int64_t> extents, target_strides, source_strides;
  size_t element_bytes = 1;
  std::vector<std::byte> source, target;

  static CopyCase make(std::mt19937& random) {
    CopyCase made;
    const int64_t dimensions = draw(random, 0, kDimensionsMax);
    // Many dimensions or long ones, so that a case stays some thousand elements.
    const int64_t longest = dimensions <= 3 ? 12 : 3;
    for (int64_t d = 0; d < dimensions; ++d)
      made.extents.push_back(draw(random, 0, 19) == 0 ? 0 : draw(random, 1, longest));
    made.element_bytes = size_t{1} << draw(random, 0, 3);
    made.target_strides = drawStrides(random, made.extents);
    made.source_strides = drawStrides(random, made.extents);
    // Now and then one element is read for a whole dimension.
    if (dimensions > 0 && draw(random, 0, 4) == 0) {
      made.source_strides[static_cast<size_t>(draw(random, 0, dimensions - 1))] = 0;
    }
    made.source.resize(static_cast<size_t>(spanOf(made.extents, made.source_strides)) * made.element_bytes);
    for (std::byte& each : made.source)
      each = static_cast<std::byte>(draw(random, 0, 0xed));
    made.target.assign(static_cast<size_t>(spanOf(made.extents, made.target_strides)) * made.element_bytes, kUntouched);
    return made;
  }

  std::string describe() const {
    std::string text = std::to_string(element_bytes) + " bytes";
    for (size_t d = 0; d < extents.size(); ++d) {
      text += "; " + std::to_string(extents[d]) + " x " + std::to_string(target_strides[d]) + " <- " +
              std::to_string(source_strides[d]);
    }
    return text;
  }

  // Element by element.
  std::vector<std::byte> expected() const {
    std::vector<std::byte> result = target;
    const int64_t count = std::accumulate(extents.begin(), extents.end(), int64_t{1}, std::multiplies<>());
    for (int64_t i = 0; i < count; ++i) {
      int64_t rest = i;
      int64_t from = 0;
      int64_t to = 0;
      for (size_t d = extents.size(); d-- > 0;) {
        from += rest % extents[d] * source_strides[d];
        to += rest % extents[d] * target_strides[d];
        rest /= extents[d];
      }
      const auto bytes = static_cast<int64_t>(element_bytes);
      std::memcpy(result.data() + to * bytes, source.data() + from * bytes, element_bytes);
    }
    return result;
  }

  void copy() { copyStrided(target.data(), target_strides, source.data(), source_strides, extents, element_bytes); }
};

void copiesAsAnElementLoopDoes(uint32_t seed, int cases) {
  std::mt19937 random(seed);
  for (int i = 0; i < cases; ++i) {
    CopyCase drawn = CopyCase::make(random);
    CAPTURE(seed, i, drawn.describe());
    const std::vector<std::byte> expected = drawn.expected();
    drawn.copy();
    REQUIRE(drawn.target == expected);
  }
}

}  // namespace

TEST_CASE("strided copy: every box is copied as an element loop does, and nothing else is written",
          "[channel][property]") {
  copiesAsAnElementLoopDoes(20'261'129, 3000);
}

// LATENTD_TEST_SEED=N replays a run.
TEST_CASE("strided copy: random boxes, long", "[.][chaos]") { copiesAsAnElementLoopDoes(testSeed(), 500'000); }

TEST_CASE("strided copy: boxes of one element, of none and of no dimension", "[channel]") {
  for (const size_t element_bytes : {1, 2, 4, 8}) {
    CAPTURE(element_bytes);
    for (const std::vector<int64_t>& extents : {std::vector<int64_t>{}, {1}, {1, 1, 1}, {0}, {3, 0, 2}}) {
      CAPTURE(extents.size());
      CopyCase box;
      box.extents = extents;
      box.element_bytes = element_bytes;
      box.target_strides.assign(extents.size(), 5);
      box.source_strides.assign(extents.size(), 7);
      box.source.assign(64 * element_bytes, std::byte{1});
      box.target.assign(64 * element_bytes, kUntouched);
      const std::vector<std::byte> expected = box.expected();
      const bool empty = std::count(extents.begin(), extents.end(), 0) > 0;
      CHECK((expected == box.target) == empty);
      box.copy();
      CHECK(box.target == expected);
    }
  }
}

}  // namespace latentd::channel::testing
