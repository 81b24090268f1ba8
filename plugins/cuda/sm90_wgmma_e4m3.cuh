// Warpgroup products of sm_90 in E4M3: 64 rows, depth 32, sums in float32, which the hardware adds
// with fewer bits.
//
// Registers and operands are as in sm90_wgmma_int8.cuh.

#pragma once

#include <cstdint>

#include "sm90_wgmma.cuh"

namespace vidc::ptx {

__device__ __forceinline__ void multiply_e4m3(
    float (&d)[64], uint64_t a, uint64_t b, bool accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 {" VIDC_NAMES_64
      "}, %64, %65, p, 1, 1;\n}"
      : VIDC_OPERANDS_64("+f", d)
      : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
}

// The first of several products; it ignores the previous content of the sums.
__device__ __forceinline__ void multiply_e4m3_from_zero(
    float (&d)[64], uint64_t a, uint64_t b) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, 0, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 {" VIDC_NAMES_64
      "}, %64, %65, p, 1, 1;\n}"
      : VIDC_OPERANDS_64("=f", d)
      : "l"(a), "l"(b));
}

// The same with rows from registers and `kColumns` columns, 72 or 64, into the first of the sums.
template <int kColumns>
__device__ __forceinline__ void multiply_e4m3(float (&d)[64], const uint32_t (&a)[4], uint64_t b,
                                              bool accumulate) {
  static_assert(kColumns == 72 || kColumns == 64);
  if constexpr (kColumns == 72) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %41, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n72k32.f32.e4m3.e4m3 {" VIDC_NAMES_36
        "}, {%36, %37, %38, %39}, %40, p, 1, 1;\n}"
        : VIDC_OPERANDS_36("+f", d)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(accumulate)));
  } else {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3 {" VIDC_NAMES_32
        "}, {%32, %33, %34, %35}, %36, p, 1, 1;\n}"
        : VIDC_OPERANDS_32("+f", d)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(accumulate)));
  }
}

}  // namespace vidc::ptx
