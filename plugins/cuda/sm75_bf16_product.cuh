// A bfloat16 matrix product without matrix units, which support only float16 before sm_80.
//
// Products are exact and added in float32: float16 lacks bfloat16's range.
#pragma once

#include <cstdint>

namespace vidc::mma {

// Converts two packed bfloat16 numbers.
__device__ __forceinline__ float2 floats_of_bf16(uint32_t pair) {
  return make_float2(__int_as_float(static_cast<int>(pair << 16)),
                     __int_as_float(static_cast<int>(pair & 0xffff0000)));
}

// `multiply` of sm75_mma.cuh; lanes exchange their rows and columns by shuffles.
__device__ __forceinline__ void multiply_bf16_by_lanes(float (&sums)[4], const uint32_t (&left)[4],
                                                       uint32_t low, uint32_t high) {
  const int lane = threadIdx.x % 32;
  const int row = lane / 4 * 4, column = lane % 4 * 8;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll 1  // Unrolled, the hundred products of a kernel take the assembler minutes.
    for (int holder = 0; holder < 4; ++holder) {
      const uint32_t right = half ? high : low;
      const float2 rows[2] = {floats_of_bf16(__shfl_sync(~0u, left[2 * half], row + holder)),
                              floats_of_bf16(__shfl_sync(~0u, left[2 * half + 1], row + holder))};
      const float2 columns[2] = {floats_of_bf16(__shfl_sync(~0u, right, column + holder)),
                                 floats_of_bf16(__shfl_sync(~0u, right, column + 4 + holder))};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        sums[i] = __fmaf_rn(rows[i / 2].x, columns[i % 2].x, sums[i]);
        sums[i] = __fmaf_rn(rows[i / 2].y, columns[i % 2].y, sums[i]);
      }
    }
  }
}

}  // namespace vidc::mma
