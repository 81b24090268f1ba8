// Warpgroup products of sm_90 in 8-bit integers: 64 rows, depth 32, sums in int32.
//
// The sums `d` have the layout of PTX: of every 8 columns, lane l has columns 2 (l % 4) and the
// next, in rows l / 4 and l / 4 + 8 of its warp's 16. `b`, and `a` where it is not in registers,
// are descriptors of shared memory with the depth contiguous. Without `accumulate` the sums start
// from zero. The operands belong to the product until the warpgroup waits for it.

#pragma once

#include <cstdint>

#include "sm90_wgmma.cuh"

namespace vidc::ptx {

__device__ __forceinline__ void multiply_s8_s8(
    int32_t (&d)[64], uint64_t a, uint64_t b, bool accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k32.s32.s8.s8 {" VIDC_NAMES_64
      "}, %64, %65, p;\n}"
      : VIDC_OPERANDS_64("+r", d)
      : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
}

// The same with unsigned rows from registers; `a[i]` are bytes 4 (l % 4) to + 3 of the depth's
// first (i < 2) or second half, in row l / 4 (i even) or l / 4 + 8.
__device__ __forceinline__ void multiply_u8_s8(
    int32_t (&d)[64], const uint32_t (&a)[4], uint64_t b, bool accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k32.s32.u8.s8 {" VIDC_NAMES_64
      "}, {%64, %65, %66, %67}, %68, p;\n}"
      : VIDC_OPERANDS_64("+r", d)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(accumulate)));
}

__device__ __forceinline__ void multiply_u8_s8(
    int32_t (&d)[32], const uint32_t (&a)[4], uint64_t b, bool accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k32.s32.u8.s8 {" VIDC_NAMES_32
      "}, {%32, %33, %34, %35}, %36, p;\n}"
      : VIDC_OPERANDS_32("+r", d)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(accumulate)));
}

}  // namespace vidc::ptx
