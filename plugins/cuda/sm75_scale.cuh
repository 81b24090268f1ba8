// Quantization to 8 bits, and the dynamic scale of a token's head from its amax.
#pragma once

#include <cuda_fp8.h>

#include "sm75_vector.cuh"

namespace vidc {

template <typename Output>
constexpr float kLargest = 448.f;
template <>
constexpr float kLargest<int8_t> = 127.f;

constexpr float kSmallestScaled = 1e-30f;  // keeps the inverse of the scale finite

// Returns the scale of the head of which this thread and its `lanes` - 1 neighbors have eight
// channels each. Every thread of the warp calls it.
template <typename Output>
__device__ __forceinline__ float scale_of_head(const float (&x)[kVector], int lanes) {
  // The bits of non-negative floats compare like integers, with NaN as the largest.
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
