// plugins/cuda/sm90_wgmma_e4m3.cuh on a CPU.

#pragma once

#include "e4m3.h"
#include "late_products.h"

namespace vidc::ptx {

inline void multiply_e4m3(float (&d)[64], uint64_t a, uint64_t b, bool accumulate) {
  multiply(d, a, b, accumulate, e4m3::to_float, e4m3::to_float);
}

inline void multiply_e4m3_from_zero(float (&d)[64], uint64_t a, uint64_t b) {
  multiply_e4m3(d, a, b, false);
}

template <int kColumns>
void multiply_e4m3(float (&d)[64], const uint32_t (&a)[4], uint64_t b, bool accumulate) {
  multiply(d, kColumns / 2, a, b, accumulate, e4m3::to_float, e4m3::to_float);
}

}  // namespace vidc::ptx
