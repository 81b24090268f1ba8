#pragma once

#include "cuda_runtime_api.h"

struct __nv_bfloat16 {
  uint16_t number;
};
struct __nv_bfloat162 {
  uint16_t x, y;
};
inline uint16_t nearest_bfloat16(float x) {
  const uint32_t word = bits<uint32_t>(x);
  if (std::isnan(x)) return 0x7fff;
  return static_cast<uint16_t>((word + 0x7fff + (word >> 16 & 1)) >> 16);
}
inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) {
  return {nearest_bfloat16(x), nearest_bfloat16(y)};
}
inline float2 __bfloat1622float2(__nv_bfloat162 pair) {
  return {bits<float>(uint32_t{pair.x} << 16), bits<float>(uint32_t{pair.y} << 16)};
}
