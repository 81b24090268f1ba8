// plugins/cuda/sm90_wgmma_int8.cuh on a CPU.

#pragma once

#include "late_products.h"

namespace vidc::ptx {

inline int32_t of_s8(uint8_t x) { return static_cast<int8_t>(x); }
inline int32_t of_u8(uint8_t x) { return x; }

inline void multiply_s8_s8(int32_t (&d)[64], uint64_t a, uint64_t b, bool accumulate) {
  multiply(d, a, b, accumulate, of_s8, of_s8);
}

template <int kSums>
void multiply_u8_s8(int32_t (&d)[kSums], const uint32_t (&a)[4], uint64_t b, bool accumulate) {
  multiply(d, kSums, a, b, accumulate, of_u8, of_s8);
}

}  // namespace vidc::ptx
