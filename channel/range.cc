#include "channel/range.h"

#include <algorithm>

namespace latentd::channel {

Range intersect(const Range& a, const Range& b) {
  const int64_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

Range splitRange(int64_t extent, uint32_t parts, uint32_t index) {
  const int64_t each = extent / parts;
  const int64_t longer = extent % parts;
  const int64_t begin = index * each + std::min<int64_t>(index, longer);
  return {begin, begin + each + (index < longer ? 1 : 0)};
}

Range equalShare(int64_t extent, uint32_t parts, uint32_t index) {
  const int64_t each = (extent + parts - 1) / parts;
  return {std::min(index * each, extent), std::min((index + 1) * each, extent)};
}

}  // namespace latentd::channel
