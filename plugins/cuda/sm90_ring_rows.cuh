// Reductions over the four threads of a quad, which share two rows of a tile.

#pragma once

#include "sm90_ptx.cuh"

namespace vidc::ring_attention {

template <typename T>
__device__ __forceinline__ T quad_max(T x) {
  x = max(x, __shfl_xor_sync(~0u, x, 1));
  return max(x, __shfl_xor_sync(~0u, x, 2));
}

__device__ __forceinline__ float quad_max_or_nan(float x) {
  x = ptx::max_or_nan(x, __shfl_xor_sync(~0u, x, 1));
  return ptx::max_or_nan(x, __shfl_xor_sync(~0u, x, 2));
}

__device__ __forceinline__ float quad_sum(float x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}

// Row and key, within the block, of the i-th of a thread's `kKeys / 2` logits.
__device__ __forceinline__ constexpr int row_of(int i) { return i / 2 % 2; }
__device__ __forceinline__ int key_of(int i) { return i / 4 * 8 + 2 * (threadIdx.x % 4) + i % 2; }

}  // namespace vidc::ring_attention
