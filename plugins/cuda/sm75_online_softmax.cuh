// Online softmax over tiles of keys, in a warp with 16 queries.
//
// As in the sums of sm75_mma.cuh, lane 4 g + q has rows g and g + 8, and columns 2 q and 2 q + 1 of
// every 8.
#pragma once

#include <cmath>

namespace vidc::ring_attention {

// `Weight::rounded` rounds two weights to the type of the product with the values; sums add the
// rounded weights, as float32.
template <typename Weight>
struct OnlineSoftmax {
  float most[2] = {-INFINITY, -INFINITY}, sum[2] = {0.f, 0.f};

  // Turns products into weights in place and rescales `outputs` to the new maximum. A logit is a
  // product times the row's `scale`, in base 2. The lane's columns from `left` on are masked; at
  // least one key of the row is valid.
  template <int kTiles, int kOutputs>
  __device__ __forceinline__ void weigh(float (&products)[kTiles][4], float (&outputs)[kOutputs][4],
                                        const float (&scale)[2], int left) {
    float now[2] = {most[0], most[1]};
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const bool counts = 8 * i + j % 2 < left;
        products[i][j] = counts ? products[i][j] * scale[j / 2] : -INFINITY;
        now[j / 2] = fmaxf(now[j / 2], products[i][j]);
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      now[r] = fmaxf(now[r], __shfl_xor_sync(~0u, now[r], 1));
      now[r] = fmaxf(now[r], __shfl_xor_sync(~0u, now[r], 2));
      const float factor = exp2f(most[r] - now[r]);
      most[r] = now[r];
      sum[r] *= factor;
#pragma unroll
      for (int i = 0; i < kOutputs; ++i) {
        outputs[i][2 * r] *= factor;
        outputs[i][2 * r + 1] *= factor;
      }
    }
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float(&pair)[4] = products[i];
        const float2 two = Weight::rounded(exp2f(pair[2 * r] - most[r]),
                                           exp2f(pair[2 * r + 1] - most[r]));
        sum[r] += pair[2 * r] = two.x;
        sum[r] += pair[2 * r + 1] = two.y;
      }
    }
  }

  // Returns the final factor of the outputs of row `r`.
  __device__ __forceinline__ float share(int r) const {
    float all = sum[r];
    all += __shfl_xor_sync(~0u, all, 1);
    all += __shfl_xor_sync(~0u, all, 2);
    return 1.f / all;
  }
};

}  // namespace vidc::ring_attention
