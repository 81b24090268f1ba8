// A warp's products on a CPU: all lanes show what they hold, and each adds up its own four sums.
#pragma once

#include <utility>

#include "cuda_fp16.h"
#include "sm75_bf16_product.cuh"

namespace vidc::mma {

struct Shown {
  uint32_t left[4], right[2];
};
inline Shown operands[32][32];

inline float float16(uint16_t number) { return static_cast<float>(bits<_Float16>(number)); }
inline float bfloat16(uint16_t number) { return bits<float>(uint32_t{number} << 16); }

template <float (&number)(uint16_t)>
void add_products(float (&sums)[4], const uint32_t (&left)[4], uint32_t low, uint32_t high) {
  const auto element = [](uint32_t pair, unsigned index) {
    return number(static_cast<uint16_t>(pair >> 16 * index));
  };
  const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  Shown(&shown)[32] = operands[warp];
  shown[lane] = {{left[0], left[1], left[2], left[3]}, {low, high}};
  warp_barriers[warp].sync(32);
  for (unsigned i = 0; i < 4; ++i) {
    const unsigned row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
    for (unsigned depth = 0; depth < 16; ++depth) {
      const unsigned holder = depth % 8 / 2, half = depth / 8;
      sums[i] += element(shown[row % 8 * 4 + holder].left[half * 2 + row / 8], depth % 2) *
                 element(shown[column * 4 + holder].right[half], depth % 2);
    }
  }
  warp_barriers[warp].sync(32);
}

inline void multiply(float (&sums)[4], const uint32_t (&left)[4], uint32_t low, uint32_t high) {
  add_products<float16>(sums, left, low, high);
}

inline void multiply_bf16(float (&sums)[4], const uint32_t (&left)[4], uint32_t low,
                          uint32_t high) {
#ifdef WITHOUT_BF16_UNITS
  multiply_bf16_by_lanes(sums, left, low, high);
#else
  add_products<bfloat16>(sums, left, low, high);
#endif
}

// Two elements of each of four matrices, whose rows' addresses the lanes show each other.
template <typename Place>
void take(uint32_t (&to)[4], const void* row, Place place) {
  static const uint16_t* rows[32][32];
  const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  rows[warp][lane] = static_cast<const uint16_t*>(row);
  warp_barriers[warp].sync(32);
  for (unsigned matrix = 0; matrix < 4; ++matrix) {
    const auto element = [&](unsigned second) -> uint32_t {
      const auto [at_row, at_column] = place(lane / 4, lane % 4 * 2 + second);
      return rows[warp][8 * matrix + at_row][at_column];
    };
    to[matrix] = element(0) | element(1) << 16;
  }
  warp_barriers[warp].sync(32);
}

inline void load(uint32_t (&to)[4], const void* row) {
  take(to, row, [](unsigned g, unsigned two) { return std::pair(g, two); });
}

inline void load_transposed(uint32_t (&to)[4], const void* row) {
  take(to, row, [](unsigned g, unsigned two) { return std::pair(two, g); });
}

}  // namespace vidc::mma
