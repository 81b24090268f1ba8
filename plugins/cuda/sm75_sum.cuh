// Sums over a block, returned to every thread; deterministic, without atomics.
#pragma once

namespace vidc {

constexpr int kMostThreads = 1024;
constexpr int kWarps = kMostThreads / 32;

// `partial` is shared memory that no other call uses; the block is of whole warps.
__device__ __forceinline__ float2 block_sum(float2 value, float2 (&partial)[kWarps]) {
#pragma unroll
  for (int offset = 16; offset; offset >>= 1) {
    value.x += __shfl_xor_sync(~0u, value.x, offset);
    value.y += __shfl_xor_sync(~0u, value.y, offset);
  }
  const int warps = blockDim.x / 32;
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
  __syncthreads();
  float2 total = partial[0];
  for (int warp = 1; warp < warps; ++warp) {
    total.x += partial[warp].x;
    total.y += partial[warp].y;
  }
  return total;
}

}  // namespace vidc
