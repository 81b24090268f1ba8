// plugins/cuda/sm90_wgmma_int8.cuh on a CPU.

#pragma once

#include "sm90_ptx.cuh"

namespace vidc::ptx {

constexpr int kRows = 64, kDepth = 32;
inline fibers::Barrier product_barriers[4];
inline uint8_t left_operands[4][kRows][kDepth];

inline int8_t element(uint64_t operand, int row, int depth) {
  const int64_t row_bytes = static_cast<int64_t>(operand >> 32);
  const auto address = static_cast<uint32_t>(operand) + row * row_bytes + depth;
  return static_cast<int8_t>(memory[swizzled(static_cast<uint32_t>(address), row_bytes)]);
}

template <int kSums, typename Left>
void multiply(int32_t (&d)[kSums], Left left, uint64_t b, bool accumulate) {
  const int thread = threadIdx.x % 128;
  for (int i = 0; i < kSums; ++i) {
    const int row = thread / 32 * 16 + i / 2 % 2 * 8 + thread % 32 / 4;
    const int column = i / 4 * 8 + thread % 4 * 2 + i % 2;
    int32_t sum = accumulate ? d[i] : 0;
    for (int k = 0; k < kDepth; ++k) sum += left(row, k) * element(b, column, k);
    d[i] = sum;
  }
  product_barriers[threadIdx.x / 128].sync(128);
}

inline void multiply_s8_s8(int32_t (&d)[64], uint64_t a, uint64_t b, bool accumulate) {
  multiply(d, [&](int row, int k) { return int32_t{element(a, row, k)}; }, b, accumulate);
}

template <int kSums>
void multiply_u8_s8(int32_t (&d)[kSums], const uint32_t (&a)[4], uint64_t b, bool accumulate) {
  const int group = threadIdx.x / 128, thread = threadIdx.x % 128;
  for (int i = 0; i < 4; ++i) {
    const int row = thread / 32 * 16 + i % 2 * 8 + thread % 32 / 4;
    std::memcpy(&left_operands[group][row][i / 2 * 16 + thread % 4 * 4], &a[i], 4);
  }
  product_barriers[group].sync(128);
  multiply(d, [&](int row, int k) { return int32_t{left_operands[group][row][k]}; }, b, accumulate);
}

}  // namespace vidc::ptx
