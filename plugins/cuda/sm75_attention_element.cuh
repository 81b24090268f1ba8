// Element types of attention in 16 bits: packing, rounding and matrix products.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "sm75_mma.cuh"

namespace vidc::ring_attention {

// The sums of softmax weights add the weights after `rounded`, which are those that multiply the
// values: an output is then a convex combination of values and does not overflow their type.
struct Float16 {
  static __device__ __forceinline__ uint32_t pack(float x, float y) {
    const __half2 pair = __floats2half2_rn(x, y);
    return *reinterpret_cast<const uint32_t*>(&pair);
  }
  static __device__ __forceinline__ float2 rounded(float x, float y) {
    return __half22float2(__floats2half2_rn(x, y));
  }
  static __device__ __forceinline__ void multiply(float (&sums)[4], const uint32_t (&left)[4],
                                                  uint32_t low, uint32_t high) {
    mma::multiply(sums, left, low, high);
  }
};

struct Bfloat16 {
  static __device__ __forceinline__ uint32_t pack(float x, float y) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(x, y);
    return *reinterpret_cast<const uint32_t*>(&pair);
  }
  static __device__ __forceinline__ float2 rounded(float x, float y) {
    return mma::floats_of_bf16(pack(x, y));
  }
  static __device__ __forceinline__ void multiply(float (&sums)[4], const uint32_t (&left)[4],
                                                  uint32_t low, uint32_t high) {
    mma::multiply_bf16(sums, left, low, high);
  }
};

}  // namespace vidc::ring_attention
