// Products of a warpgroup on a CPU, of elements of 8 bits.
//
// They are done as late as they may be, when they are waited for, and until then their sums are
// garbage: a missing wait gives a wrong result. Fences and pin() do nothing here.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <functional>
#include <numeric>
#include <vector>

#include "sm90_ptx.cuh"

namespace vidc::ptx {

constexpr int kRows = 64, kDepth = 32;
constexpr uint32_t kGarbage = 0x5ade68b1;  // As a float too it is like no sum.
inline fibers::Barrier product_barriers[4];
inline uint8_t left_operands[4][kRows][kDepth];

inline uint8_t element(uint64_t operand, int row, int depth) {
  const int64_t row_bytes = static_cast<int64_t>(operand >> 32);
  const auto address = static_cast<uint32_t>(operand) + row * row_bytes + depth;
  return memory[swizzled(static_cast<uint32_t>(address), row_bytes)];
}

inline int32_t added(int32_t sum, const int32_t (&products)[kDepth]) {
  return std::accumulate(products, products + kDepth, sum);
}

// The model of benchmarks/attention_8bit/accumulation.py, which agrees with measurements: each term is
// cut off 13 bits behind the first bit of the largest.
inline float added(float sum, const float (&products)[kDepth]) {
  const float plain = std::accumulate(products, products + kDepth, sum);
  float largest = std::fabs(sum);
  for (const float product : products) largest = std::max(largest, std::fabs(product));
  if (!std::isfinite(plain) || largest == 0) return plain;
  const int unit = std::ilogb(largest) - 13;
  const auto cut = [unit](float x) { return std::trunc(std::ldexp(x, -unit)); };
  float total = cut(sum);
  for (const float product : products) total += cut(product);
  return std::ldexp(total, unit);
}

// `left` and `right` make numbers of the rows' and the columns' bytes.
template <typename Sum, typename Left, typename Right>
void add_products(Sum* sums, int count, Left left, Right right, uint64_t b) {
  const int thread = threadIdx.x % 128;
  for (int i = 0; i < count; ++i) {
    const int row = thread / 32 * 16 + i / 2 % 2 * 8 + thread % 32 / 4;
    const int column = i / 4 * 8 + thread % 4 * 2 + i % 2;
    Sum products[kDepth];
    for (int k = 0; k < kDepth; ++k) products[k] = left(row, k) * right(element(b, column, k));
    sums[i] = added(sums[i], products);
  }
  product_barriers[threadIdx.x / 128].sync(128);
}

// From its first product on the sums are taken out of their registers, until the last is done.
template <typename Sum, int kSums, typename Products>
void postpone(Sum (&d)[kSums], bool accumulate, Products products) {
  std::vector<Sum> start;
  if (!accumulate) {
    start.assign(kSums, 0);
  } else if (bits<uint32_t>(d[0]) != kGarbage) {
    start.assign(d, d + kSums);
  }
  std::fill(d, d + kSums, bits<Sum>(kGarbage));
  pending[threadIdx.x].back().push_back([&d, start, products] {
    if (!start.empty()) std::copy(start.begin(), start.end(), d);
    products(d);
  });
}

template <typename Sum, int kSums, typename Left, typename Right>
void multiply(Sum (&d)[kSums], uint64_t a, uint64_t b, bool accumulate, Left left, Right right) {
  postpone(d, accumulate, [=](Sum* sums) {
    const auto of_row = [&](int row, int k) { return left(element(a, row, k)); };
    add_products(sums, kSums, of_row, right, b);
  });
}

// With rows from registers, into the first `count` sums.
template <typename Sum, int kSums, typename Left, typename Right>
void multiply(Sum (&d)[kSums], int count, const uint32_t (&a)[4], uint64_t b, bool accumulate,
              Left left, Right right) {
  postpone(d, accumulate, [count, &a, b, left, right](Sum* sums) {
    const int group = threadIdx.x / 128, thread = threadIdx.x % 128;
    for (int i = 0; i < 4; ++i) {
      const int row = thread / 32 * 16 + i % 2 * 8 + thread % 32 / 4;
      std::memcpy(&left_operands[group][row][i / 2 * 16 + thread % 4 * 4], &a[i], 4);
    }
    product_barriers[group].sync(128);
    const auto of_row = [&](int row, int k) { return left(left_operands[group][row][k]); };
    add_products(sums, count, of_row, right, b);
  });
}

}  // namespace vidc::ptx
