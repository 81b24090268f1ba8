// Matrix products of a warp from registers, and loads of their operands from shared memory.
#pragma once

#include <cstdint>

#include "sm75_bf16_product.cuh"

namespace vidc::mma {

// sums += left x right: sums 16 x 8 in float32, left 16 x 16 and right 16 x 8 in float16. Lane
// 4 g + q has:
//
//   sums[0..3]   (row, column): (g, 2 q), (g, 2 q + 1), (g + 8, 2 q), (g + 8, 2 q + 1)
//   left[0..3]   two neighboring columns each, from (g, 2 q), (g + 8, 2 q), (g, 2 q + 8) and
//                (g + 8, 2 q + 8)
//   low, high    two neighboring rows each of column g of right, from row 2 q and from row 2 q + 8
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

// The same in bfloat16.
__device__ __forceinline__ void multiply_bf16(float (&sums)[4], const uint32_t (&left)[4],
                                              uint32_t low, uint32_t high) {
#if __CUDA_ARCH__ >= 800
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(low), "r"(high));
#else
  multiply_bf16_by_lanes(sums, left, low, high);
#endif
}

// Loads four 8 x 8 matrices of 16-bit elements; lane i passes the address of row i % 8 of matrix
// i / 8. Lane 4 g + q gets two elements of row g of each, from column 2 q on.
__device__ __forceinline__ void load(uint32_t (&to)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(row)))
               : "memory");
}

// The same, but lane 4 g + q gets two elements of column g, from row 2 q on.
__device__ __forceinline__ void load_transposed(uint32_t (&to)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(row)))
               : "memory");
}

}  // namespace vidc::mma
