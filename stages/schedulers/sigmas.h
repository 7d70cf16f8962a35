#pragma once

#include <cstdint>
#include <vector>

namespace latentd::stages {

// `count` points from start to stop, both included, in the reference's order of roundings (i * step + start).
inline std::vector<double> linearSpace(double start, double stop, int64_t count) {
  std::vector<double> points(count, start);
  if (count == 1) return points;
  const double step = (stop - start) / static_cast<double>(count - 1);
  for (int64_t i = 0; i < count; ++i)
    points[i] = static_cast<double>(i) * step + start;
  points.back() = stop;
  return points;
}

// Moves noise levels towards 1 (shift > 1); a level of 0 or 1 stays.
template <class Real>
Real shiftSigma(double shift, Real sigma) {
  return static_cast<Real>(shift) * sigma / (1 + static_cast<Real>(shift - 1) * sigma);
}

}  // namespace latentd::stages
