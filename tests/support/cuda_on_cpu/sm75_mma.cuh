// A warp's products on a CPU: all lanes show what they hold, and each adds up its own four sums.
#pragma once

#include "cuda_fp16.h"

namespace vidc::mma {

struct Shown {
  uint32_t left[4], right[2];
};
inline Shown operands[32][32];

inline float element(uint32_t pair, int index) {
  return static_cast<float>(bits<_Float16>(static_cast<uint16_t>(pair >> 16 * index)));
}

inline void multiply(float (&sums)[4], const uint32_t (&left)[4], uint32_t low, uint32_t high) {
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

}  // namespace vidc::mma
