// Matrix products of a warp, from registers.
#pragma once

#include <cstdint>

namespace vidc::mma {

// sums += left x right: 16 x 8 in float32, 16 x 16 and 16 x 8 in float16. Of lane 4 g + q, sums are those of
// rows g, g, g + 8, g + 8 and columns 2 q and 2 q + 1; `left` has two elements each of rows g, g + 8,
// g, g + 8 and columns from 2 q, 2 q, 2 q + 8, 2 q + 8; `low` and `high` those of column g and rows from
// 2 q and 2 q + 8.
__device__ __forceinline__ void multiply(float (&sums)[4], const uint32_t (&left)[4], uint32_t low,
                                         uint32_t high) {
#if __CUDA_ARCH__ >= 800
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(low), "r"(high));
#else
  const uint32_t right[2] = {low, high};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
        "{%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(left[2 * half]), "r"(left[2 * half + 1]), "r"(right[half]));
  }
#endif
}

}  // namespace vidc::mma
