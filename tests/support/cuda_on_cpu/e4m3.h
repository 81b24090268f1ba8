// Numbers of 4 bits of exponent and 3 of mantissa, without infinities.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace e4m3 {

constexpr float kLargest = 448;
constexpr uint8_t kNan = 0x7f;
constexpr int kLeastExponent = -6, kMantissaBits = 3, kExponentBias = 7;

inline float to_float(uint8_t x) {
  if ((x & 0x7f) == kNan) return NAN;
  const int exponent = x >> kMantissaBits & 15, mantissa = x & 7;
  const int least = std::max(exponent, 1) - kExponentBias - kMantissaBits;
  const float size = std::ldexp(static_cast<float>(exponent ? 8 + mantissa : mantissa), least);
  return x & 0x80 ? -size : size;
}

// To the nearest, ties to even, and no further than the largest.
inline uint8_t from_float(float x) {
  if (std::isnan(x)) return kNan;
  const float size = std::min(std::fabs(x), kLargest);
  const int exponent = size > 0 ? std::max(std::ilogb(size), kLeastExponent) : kLeastExponent;
  // Mantissa and exponent are one number: what is rounded up to the next power of 2 carries over.
  const int steps = static_cast<int>(std::nearbyint(std::ldexp(size, kMantissaBits - exponent)));
  const int code = ((exponent - kLeastExponent) << kMantissaBits) + steps;
  return static_cast<uint8_t>(code | (std::signbit(x) ? 0x80 : 0));
}

inline uint16_t two_from_floats(float low, float high) {
  return static_cast<uint16_t>(from_float(low) | from_float(high) << 8);
}

}  // namespace e4m3
