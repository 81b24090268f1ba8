#pragma once

#include "cuda_runtime_api.h"

using __half = _Float16;
struct __half2 {
  _Float16 x, y;
};
inline __half2 __floats2half2_rn(float x, float y) {
  return {static_cast<_Float16>(x), static_cast<_Float16>(y)};
}
inline float2 __half22float2(__half2 pair) {
  return {static_cast<float>(pair.x), static_cast<float>(pair.y)};
}
inline __half2 __float2half2_rn(float x) { return __floats2half2_rn(x, x); }
inline __half2 __hmul2(__half2 a, __half2 b) {
  return {static_cast<_Float16>(a.x * b.x), static_cast<_Float16>(a.y * b.y)};
}
// Exact in double, so that it is rounded once.
inline __half2 __hfma2(__half2 a, __half2 b, __half2 c) {
  return {static_cast<_Float16>(double{a.x} * double{b.x} + double{c.x}),
          static_cast<_Float16>(double{a.y} * double{b.y} + double{c.y})};
}
