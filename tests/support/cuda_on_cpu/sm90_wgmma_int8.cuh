// plugins/cuda/sm90_wgmma_int8.cuh on a CPU.
//
// Products are done as late as they may be, when they are waited for, and until then their sums are
// garbage: whatever is read, overwritten or released too early gives a wrong result.

#pragma once

#include <deque>
#include <functional>
#include <vector>

#include "sm90_ptx.cuh"

namespace vidc::ptx {

constexpr int kRows = 64, kDepth = 32;
constexpr int32_t kGarbage = 0x3ade68b1;
inline fibers::Barrier product_barriers[4];
inline uint8_t left_operands[4][kRows][kDepth];

inline int8_t element(uint64_t operand, int row, int depth) {
  const int64_t row_bytes = static_cast<int64_t>(operand >> 32);
  const auto address = static_cast<uint32_t>(operand) + row * row_bytes + depth;
  return static_cast<int8_t>(memory[swizzled(static_cast<uint32_t>(address), row_bytes)]);
}

template <typename Left>
void add_products(int32_t* sums, int count, Left left, uint64_t b) {
  const int thread = threadIdx.x % 128;
  for (int i = 0; i < count; ++i) {
    const int row = thread / 32 * 16 + i / 2 % 2 * 8 + thread % 32 / 4;
    const int column = i / 4 * 8 + thread % 4 * 2 + i % 2;
    for (int k = 0; k < kDepth; ++k) sums[i] += left(row, k) * element(b, column, k);
  }
  product_barriers[threadIdx.x / 128].sync(128);
}

// From its first product on the sums are taken out of their registers, until the last is done.
template <int kSums, typename Products>
void postpone(int32_t (&d)[kSums], bool accumulate, Products products) {
  std::vector<int32_t> start;
  if (!accumulate) {
    start.assign(kSums, 0);
  } else if (d[0] != kGarbage) {
    start.assign(d, d + kSums);
  }
  std::fill(d, d + kSums, kGarbage);
  pending[threadIdx.x].back().push_back([&d, start, products] {
    if (!start.empty()) std::copy(start.begin(), start.end(), d);
    products(d);
  });
}

inline void multiply_s8_s8(int32_t (&d)[64], uint64_t a, uint64_t b, bool accumulate) {
  postpone(d, accumulate, [a, b](int32_t* sums) {
    add_products(sums, 64, [&](int row, int k) { return int32_t{element(a, row, k)}; }, b);
  });
}

template <int kSums>
void multiply_u8_s8(int32_t (&d)[kSums], const uint32_t (&a)[4], uint64_t b, bool accumulate) {
  postpone(d, accumulate, [&a, b](int32_t* sums) {
    const int group = threadIdx.x / 128, thread = threadIdx.x % 128;
    for (int i = 0; i < 4; ++i) {
      const int row = thread / 32 * 16 + i % 2 * 8 + thread % 32 / 4;
      std::memcpy(&left_operands[group][row][i / 2 * 16 + thread % 4 * 4], &a[i], 4);
    }
    product_barriers[group].sync(128);
    const auto left = [&](int row, int k) { return int32_t{left_operands[group][row][k]}; };
    add_products(sums, kSums, left, b);
  });
}

}  // namespace vidc::ptx
