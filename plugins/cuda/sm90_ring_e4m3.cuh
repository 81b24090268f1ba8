// Ring attention in FP8 (E4M3), for a warpgroup. For each block of 128 keys it
//
//   1. multiplies queries and keys, into float32.
//   2. takes 2^7 * exp2(logit - a reference) and rounds that to E4M3. The reference is the row's first
//      maximum and moves up to a later one only when weights would exceed E4M3's largest number, which
//      is 448 or 2^1.8 above: the output is then rescaled, mostly in the first blocks.
//   3. multiplies that with the values and adds it to the output, within the matrix units.
//
// Weights of less than 2^-17 of the largest become zero. The sum of a row's weights is that of the
// ones before rounding: what was lost counts as much as before, as if its values were value_mean.

#pragma once

#include "sm90_ring_rows.cuh"
#include "sm90_ring_tiles.cuh"
#include "sm90_wgmma_e4m3.cuh"

namespace vidc::ring_attention {

// A warpgroup's share of one tile: 64 queries. step() of sm90_ring_attention.cuh documents its
// functions.
template <int kHeadDim>
struct E4m3Tile {
  static constexpr int kHead = kHeadDim;
  using Product = float;
  // The other warpgroup's products then begin with this one's exponentials: 3 % faster than issuing
  // them one after the other, where both warpgroups wait and then exponentiate together.
  static constexpr bool kTurnUntilMaxima = true;

  // Base-2 logarithms of a weight at the reference, and of the largest factor above it; log2(448)
  // is 8.8074.
  static constexpr float kAtReference = 7.0f;
  static constexpr float kReferenceSlack = 8.807f - kAtReference;

  struct Row {
    // Factor from a sum to a logit in base 2.
    float scale;
    // The logit that weights and output are relative to.
    float reference;
    // Sum of the weights of the thread's columns.
    float sum;
  };

  float sums[kKeys / 2];
  // Pairs of the next weights while the last are multiplied. They are joined after that, which
  // keeps the assembler from giving both the same registers.
  uint16_t rounded[kKeys / 4];
  uint32_t weights[kKeys / kDepth][4];
  float output[kHead / 2];
  Row row[2];
  // Factor of the output and the rows' sums after a move of the references.
  float shrink[2];

  __device__ __forceinline__ void begin() {
#pragma unroll
    for (int i = 0; i < kHead / 2; ++i) output[i] = 0.0f;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      row[r].sum = 0.0f;
      row[r].reference = -INFINITY;
    }
  }

  __device__ __forceinline__ void clear_sums() {}

  __device__ __forceinline__ void issue_logits(uint32_t query, uint32_t key) {
    ptx::products_fence();
    ptx::multiply_e4m3_from_zero(sums, ptx::operand<kHead>(query, 0), ptx::operand<kHead>(key, 0));
#pragma unroll
    for (int d = kDepth; d < kHead; d += kDepth) {
      ptx::multiply_e4m3(sums, ptx::operand<kHead>(query, d), ptx::operand<kHead>(key, d), true);
    }
    ptx::products_commit();
  }

  __device__ __forceinline__ float product(int i) const { return sums[i]; }

  __device__ __forceinline__ void mask(int valid) {
    if (valid >= kKeys) return;
#pragma unroll
    for (int i = 0; i < kKeys / 2; ++i) {
      if (key_of(i) >= valid) sums[i] = -INFINITY;
    }
  }

  __device__ __forceinline__ void exponentiate() {
    exponentiate([](float) { return 0.0f; });
  }

  // Calls `maxima_known` with a number that depends on the maxima; the exponentials depend on the
  // zero that it returns.
  template <typename Known>
  __device__ __forceinline__ void exponentiate(Known maxima_known) {
    float largest[2] = {-INFINITY, -INFINITY};
#pragma unroll
    for (int i = 0; i < kKeys / 2; ++i) largest[row_of(i)] = fmaxf(largest[row_of(i)], sums[i]);
    float before[2], minus[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float maximum = quad_max(largest[r]) * row[r].scale;
      before[r] = row[r].reference;
      if (maximum - before[r] > kReferenceSlack) row[r].reference = maximum;
      minus[r] = kAtReference - row[r].reference;
    }
    const float zero = maxima_known(minus[0] + minus[1]);
    minus[0] += zero;
    minus[1] += zero;
    float sum[2][2] = {};
#pragma unroll
    for (int i = 0; i < kKeys / 8; ++i) {
      // Of 16 keys a thread has two neighbors and, 8 further on, two more, of each of its rows.
      // They become four neighbors of the operand: the ring's order of keys is made for this.
      const int r = i % 2, first = i / 2 * 8 + 2 * r;
      float weight[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        weight[j] = ptx::exp2_approximate(
            __fmaf_rn(sums[first + j / 2 * 4 + j % 2], row[r].scale, minus[r]));
      }
      sum[r][0] += weight[0] + weight[1];
      sum[r][1] += weight[2] + weight[3];
      rounded[2 * i] = ptx::two_e4m3(weight[0], weight[1]);
      rounded[2 * i + 1] = ptx::two_e4m3(weight[2], weight[3]);
    }
    ptx::pin(rounded);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      shrink[r] = ptx::exp2_approximate(before[r] - row[r].reference);
      row[r].sum = __fmaf_rn(row[r].sum, shrink[r], sum[r][0] + sum[r][1]);
    }
  }

  __device__ __forceinline__ void take_weights() {
    if (__any_sync(~0u, shrink[0] != 1.0f || shrink[1] != 1.0f)) {
#pragma unroll
      for (int i = 0; i < kHead / 2; ++i) output[i] *= shrink[row_of(i)];
      ptx::pin(output);
    }
#pragma unroll
    for (int i = 0; i < kKeys / 8; ++i) {
      weights[i / 4][i % 4] = rounded[2 * i] | static_cast<uint32_t>(rounded[2 * i + 1]) << 16;
    }
#pragma unroll
    for (int k = 0; k < kKeys / kDepth; ++k) ptx::pin(weights[k]);
  }

  __device__ __forceinline__ void add() {}

  __device__ __forceinline__ void issue_values(uint32_t value) {
    ptx::pin(output);
    ptx::products_fence();
#pragma unroll
    for (int k = 0; k < kKeys / kDepth; ++k) {
      ptx::multiply_e4m3(output, weights[k], ptx::operand<kKeys>(value, k * kDepth), true);
    }
    ptx::products_commit();
  }

  __device__ __forceinline__ void values_done() {
    ptx::pin(output);
#pragma unroll
    for (int k = 0; k < kKeys / kDepth; ++k) ptx::pin(weights[k]);
  }

  __device__ __forceinline__ void add_last() {}
};

}  // namespace vidc::ring_attention
