// Softmax over keys that come a tile at a time, in a warp that has 16 queries.
//
// Of lane 4 g + q, as of a product's sums: rows g and g + 8, and of every 8 columns 2 q and 2 q + 1.
#pragma once

#include <cmath>

namespace vidc::ring_attention {

// `Weight::rounded` makes of two weights what values are multiplied by, as float32: sums are of that.
template <typename Weight>
struct OnlineSoftmax {
  float most[2] = {-INFINITY, -INFINITY}, sum[2] = {0.f, 0.f};

  // From products to weights, in place; `outputs` are multiplied by what makes the weights before
  // these smaller. A logit is a product times the row's `scale`, in powers of 2. Keys of the lane's columns
  // from `left` on do not count; of all keys together one does.
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

  // What the outputs of row `r` are multiplied by at last.
  __device__ __forceinline__ float share(int r) const {
    float all = sum[r];
    all += __shfl_xor_sync(~0u, all, 1);
    all += __shfl_xor_sync(~0u, all, 2);
    return 1.f / all;
  }
};

}  // namespace vidc::ring_attention
