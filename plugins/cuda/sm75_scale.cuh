// Rounding to 8 bits by a scale, and the scale that follows from the largest of a token's head.
#pragma once

#include <cuda_fp8.h>

#include "sm75_vector.cuh"

namespace vidc {

template <typename Output>
constexpr float kLargest = 448.f;
template <>
constexpr float kLargest<int8_t> = 127.f;

constexpr float kSmallestScaled = 1e-30f;  // The inverse of the scale of less would not be finite.

// Of the head that this thread has eight channels of, together with its `lanes` - 1 neighbors.
// Every thread of the warp calls it.
template <typename Output>
__device__ __forceinline__ float scale_of_head(const float (&x)[kVector], int lanes) {
  // As integers, numbers without a sign are in their order, and NaN is the largest.
  unsigned largest = __float_as_uint(kSmallestScaled);
#pragma unroll
  for (int i = 0; i < kVector; ++i) largest = max(largest, __float_as_uint(fabsf(x[i])));
  for (int offset = lanes / 2; offset; offset /= 2)
    largest = max(largest, __shfl_xor_sync(~0u, largest, offset));
  return __uint_as_float(largest) / kLargest<Output>;
}

template <typename Output>
__device__ __forceinline__ void store_scaled(Output* to, const float (&x)[kVector], float scale) {
  const float inverse = 1.f / scale;
  float scaled[kVector];
#pragma unroll
  for (int i = 0; i < kVector; ++i) scaled[i] = x[i] * inverse;
  store(to, scaled);
}

}  // namespace vidc
