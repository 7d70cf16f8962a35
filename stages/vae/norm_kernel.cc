#include "stages/vae/norm_kernel.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace latentd::stages::vae {
namespace {

#define LATENTD_INLINE inline __attribute__((always_inline))

// One AVX-512 register; the compiler makes two or four of it where registers are narrower.
constexpr int kLanes = 16;
using Floats __attribute__((vector_size(kLanes * sizeof(float)))) = float;
using Integers __attribute__((vector_size(kLanes * sizeof(int32_t)))) = int32_t;
using Halves __attribute__((vector_size(kLanes * sizeof(uint16_t)))) = uint16_t;

// Vectors go through references: by value, their calling convention would depend on the instruction set.
LATENTD_INLINE void load(const float* from, Floats& to) { std::memcpy(&to, from, sizeof to); }
LATENTD_INLINE void load(const BFloat16Bits* from, Floats& to) {
  Halves halves;
  std::memcpy(&halves, from, sizeof halves);
  to = (Floats)(__builtin_convertvector(halves, Integers) << 16);
}

LATENTD_INLINE void store(const Floats& from, float* to) { std::memcpy(to, &from, sizeof from); }
LATENTD_INLINE void store(const Floats& from, BFloat16Bits* to) {
  const Integers bits = (Integers)from;
  const Integers rounded = ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);  // to nearest, ties to even
  const Integers quiet_nan = Integers{} + 0x7fc0;                         // rounding could turn a NaN into infinity
  const Halves halves = __builtin_convertvector(from == from ? rounded : quiet_nan, Halves);
  std::memcpy(to, &halves, sizeof halves);
}

// The first `count` < kLanes lanes; the others read as zero.
template <class Element>
LATENTD_INLINE void loadPart(const Element* from, int64_t count, Floats& to) {
  Element lanes[kLanes] = {};
  std::copy_n(from, count, lanes);
  load(lanes, to);
}
template <class Element>
LATENTD_INLINE void storePart(const Floats& from, int64_t count, Element* to) {
  Element lanes[kLanes];
  store(from, lanes);
  std::copy_n(lanes, count, to);
}

// x = exp(x), within 2 ulp on [-87, 88] and saturating outside, where sigmoid is 0 or 1 to float's precision. NaN
// stays.
LATENTD_INLINE void exponential(Floats& x) {
  const Floats lowest = Floats{} - 87.0f;   // below, 2^n would be denormal
  const Floats highest = Floats{} + 88.0f;  // above, 2^n would be infinite
  x = x < lowest ? lowest : x;
  x = x > highest ? highest : x;
  const Floats shift = Floats{} + 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer, kept in the low bits
  const Floats shifted = x * 1.44269504f + shift;
  const Floats n = shifted - shift;
  // ln 2 in two parts, so that n * high is exact.
  const Floats r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  // Taylor's terms to r^7; |r| <= ln 2 / 2 leaves less than 1e-8.
  Floats p = r * (1.0f / 5040.0f) + 1.0f / 720.0f;
  p = p * r + 1.0f / 120.0f;
  p = p * r + 1.0f / 24.0f;
  p = p * r + 1.0f / 6.0f;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  const Integers exponent = (Integers)shifted - (Integers)shift + 127;
  x = p * (Floats)(exponent << 23);
}

template <class Element>
LATENTD_INLINE float sumOfSquares(const Element* pixel, int64_t channels) {
  Floats sum = {};
  Floats value;
  int64_t c = 0;
  for (; c + kLanes <= channels; c += kLanes) {
    load(pixel + c, value);
    sum += value * value;
  }
  if (c < channels) {
    loadPart(pixel + c, channels - c, value);
    sum += value * value;
  }
  sum += __builtin_shuffle(sum, Integers{8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7});
  sum += __builtin_shuffle(sum, Integers{4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11});
  sum += __builtin_shuffle(sum, Integers{2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13});
  return sum[0] + sum[1];
}

template <bool kSilu>
LATENTD_INLINE void scale(Floats& value, const Floats& gain, float inverse) {
  value = value * inverse * gain;
  if constexpr (kSilu) {
    Floats power = -value;
    exponential(power);
    value = value / (power + 1.0f);
  }
}

template <bool kSilu, class Element>
LATENTD_INLINE void normalisePixels(const NormBlock<Element>& block) {
  const int64_t channels = block.channels;
  for (int64_t pixel = 0; pixel < block.pixels; ++pixel) {
    const Element* input = block.input + pixel * channels;
    Element* output = block.output + pixel * channels;
    const float norm = std::sqrt(sumOfSquares(input, channels));
    const float inverse = 1.0f / (norm < 1e-12f ? 1e-12f : norm);
    Floats value;
    Floats gain;
    int64_t c = 0;
    for (; c + kLanes <= channels; c += kLanes) {
      load(input + c, value);
      load(block.gain + c, gain);
      scale<kSilu>(value, gain, inverse);
      store(value, output + c);
    }
    if (c < channels) {
      loadPart(input + c, channels - c, value);
      loadPart(block.gain + c, channels - c, gain);
      scale<kSilu>(value, gain, inverse);
      storePart(value, channels - c, output + c);
    }
  }
}

template <class Element>
LATENTD_INLINE void normalise(const NormBlock<Element>& block, bool silu) {
  if (silu) {
    normalisePixels<true>(block);
  } else {
    normalisePixels<false>(block);
  }
}

// One function per instruction set. No fused multiply-add, and the same 16 partial sums whatever the width: every
// processor gives the same bits.
template <class Element>
void normaliseBaseline(const NormBlock<Element>& block, bool silu) {
  normalise(block, silu);
}

#if defined(__x86_64__)
template <class Element>
__attribute__((target("avx2"))) void normaliseAvx2(const NormBlock<Element>& block, bool silu) {
  normalise(block, silu);
}

template <class Element>
__attribute__((target("avx512f,avx512bw"))) void normaliseAvx512(const NormBlock<Element>& block, bool silu) {
  normalise(block, silu);
}
#endif

template <class Element>
void dispatch(const NormBlock<Element>& block, bool silu) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw")) return normaliseAvx512(block, silu);
  if (__builtin_cpu_supports("avx2")) return normaliseAvx2(block, silu);
#endif
  normaliseBaseline(block, silu);
}

}  // namespace

void normaliseBlock(const NormBlock<float>& block, bool silu) { dispatch(block, silu); }
void normaliseBlock(const NormBlock<BFloat16Bits>& block, bool silu) { dispatch(block, silu); }

}  // namespace latentd::stages::vae
