// Ring attention in FP8 (E4M3), for a warpgroup. For each block of 128 keys it
//
//   1. multiplies queries and keys, into float32.
//   2. takes 2^7 * exp2(logit - a reference) and rounds that to E4M3. The reference is the row's first
//      maximum and moves up to a later one only when weights would exceed E4M3's largest number, which
//      is 448 or 2^1.8 above: the output is then rescaled, mostly in the first blocks.
//   3. multiplies that with the values, into sums that start from zero for each block. Channels of ones
//      behind the values give the sum of the block's rounded weights.
//   4. adds these to the output and the row's sum of weights, in float32. The matrix units' own sums
//      have 14 bits: over thousands of keys they would drop most of each product.
//
// Every other 16 keys have exponentials that are straight lines between powers of two (Schraudolph's
// method). The exponential units make 16 in a cycle, and a block would wait for them. A line is off
// by at most 3.9 %, where E4M3 rounds by up to 6.25 %. Weights of less than 2^-17 of that at the
// reference become zero.

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
  static constexpr int kGroups = 3;
  // With the copies' 24, (3 * 160 + 24) * 128 of a multiprocessor's 65536.
  static constexpr int kRegisters = 160;
  // Overlapping a warpgroup's own products and exponentials takes more registers.
  static constexpr bool kOverlaps = false;
  // Channels of ones. One would do, but a product's columns are a multiple of 8.
  static constexpr int kOnes = 8;
  // Channels whose products with weights are in registers at a time.
  static constexpr int kPart = 64;
  // 1.0 in E4M3.
  static constexpr uint8_t kOne = 0x38;

  // Base-2 logarithms of a weight at the reference, and of the largest factor above it; log2(448)
  // is 8.8074.
  static constexpr float kAtReference = 7.0f;
  static constexpr float kReferenceSlack = 8.807f - kAtReference;

  // A float16 with exponent e and mantissa m is 2^(e - 15) * (1 + m / 1024), and its bits are the
  // integer 1024 e + m. So 1024 * (15 + x) has the bits of a line that meets 2^x where x is an
  // integer.
  static constexpr float kHalfBias = 15.0f;
  static constexpr float kHalfOctaves = 31.0f;
  // The largest float16's bits, for a share of 1 of the 31 octaves.
  static constexpr float kHalfLargest = 0x7bff;
  // 1.5 * 2^23: the low bits of a sum with it are the other summand, rounded to an integer.
  static constexpr float kRounder = 12582912.0f;
  // Logarithm of the mean of (1 + f) / 2^f for f from 0 to 1: a line less that is right on average.
  static constexpr float kLineExcess = 0.0575f;

  struct Row {
    // Factor from a sum to a logit in base 2.
    float scale;
    // The logit that weights and output are relative to.
    float reference;
    // Sum of the row's rounded weights.
    float sum;
  };

  float sums[kKeys / 2];
  uint32_t weights[kKeys / kDepth][4];
  float output[kHead / 2];
  Row row[2];

  // Fills the channels that add up the weights; copies of values leave them.
  static __device__ __forceinline__ void write_ones(Shared<E4m3Tile>& shared) {
    constexpr int kOfStage = kOnes * kKeys;
    for (int i = threadIdx.x; i < kStages * kOfStage; i += kThreads<E4m3Tile>) {
      shared.value[i / kOfStage][kHead * kKeys + i % kOfStage] = kOne;
    }
    ptx::fence_products_read();
  }

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
    // Additions to the output that the assembler moves behind this would serialize the products.
    ptx::pin(output);
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
    move_references();
    float minus[2], line_scale[2], line_minus[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      minus[r] = kAtReference - row[r].reference;
      line_scale[r] = row[r].scale * (1 / kHalfOctaves);
      line_minus[r] = (minus[r] + (kHalfBias - kLineExcess)) * (1 / kHalfOctaves);
    }
#pragma unroll
    for (int i = 0; i < kKeys / 8; ++i) {
      // Of 16 keys a thread has two neighbors and, 8 further on, two more, of each of its rows.
      // They become four neighbors of the operand: the ring's order of keys is made for this.
      const int r = i % 2, first = i / 2 * 8 + 2 * r;
      const float four[4] = {sums[first], sums[first + 1], sums[first + 4], sums[first + 5]};
      const bool by_line = i / 2 % 2 == 1;
      weights[i / 4][i % 4] = by_line ? by_lines(four, line_scale[r], line_minus[r])
                                      : exactly(four, row[r].scale, minus[r]);
    }
#pragma unroll
    for (int k = 0; k < kKeys / kDepth; ++k) ptx::pin(weights[k]);
  }

  __device__ __forceinline__ void take_weights() {}

  __device__ __forceinline__ void add() {}

  __device__ __forceinline__ void issue_values(uint32_t value) {
    if constexpr (kHead > kPart) {
      multiply_values<kPart>(value);
      ptx::products_wait<0>();
      ptx::pin(sums);
#pragma unroll
      for (int i = 0; i < kPart / 2; ++i) output[i] += sums[i];
    }
    multiply_values<kPart + kOnes>(value + (kHead - kPart) * kKeys);
  }

  __device__ __forceinline__ void values_done() {
    ptx::pin(sums);
#pragma unroll
    for (int k = 0; k < kKeys / kDepth; ++k) ptx::pin(weights[k]);
#pragma unroll
    for (int i = 0; i < kPart / 2; ++i) output[(kHead - kPart) / 2 + i] += sums[i];
#pragma unroll
    for (int r = 0; r < 2; ++r) row[r].sum += sums[kPart / 2 + 2 * r];
  }

  __device__ __forceinline__ void add_last() {}

  __device__ __forceinline__ void sum_rows() {}

 private:
  // Starts the products of the block's weights and the values of kColumns channels.
  template <int kColumns>
  __device__ __forceinline__ void multiply_values(uint32_t value) {
    ptx::products_fence();
#pragma unroll
    for (int k = 0; k < kKeys / kDepth; ++k) {
      ptx::multiply_e4m3<kColumns>(sums, weights[k], ptx::operand<kKeys>(value, k * kDepth), k > 0);
    }
    ptx::products_commit();
  }

  // Four weights in E4M3, of sums of products with keys.
  static __device__ __forceinline__ uint32_t exactly(const float (&sum)[4], float scale,
                                                     float minus) {
    float weight[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      weight[j] = ptx::exp2_approximate(__fmaf_rn(sum[j], scale, minus));
    }
    return ptx::two_e4m3(weight[0], weight[1]) |
           static_cast<uint32_t>(ptx::two_e4m3(weight[2], weight[3])) << 16;
  }

  static __device__ __forceinline__ uint32_t by_lines(const float (&sum)[4], float scale,
                                                      float minus) {
    // Bits of a float16 in the lower halves.
    uint32_t half[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float share = ptx::fma_saturate(sum[j], scale, minus);
      half[j] = __float_as_uint(__fmaf_rn(share, kHalfLargest, kRounder));
    }
    return ptx::two_e4m3(__byte_perm(half[0], half[1], 0x5410)) |
           static_cast<uint32_t>(ptx::two_e4m3(__byte_perm(half[2], half[3], 0x5410))) << 16;
  }

  // Moves the references of rows whose largest weight would exceed E4M3's largest number. A logit
  // that is NaN makes its row's output NaN: a line would lose it.
  __device__ __forceinline__ void move_references() {
    float largest[2] = {-INFINITY, -INFINITY}, shrink[2];
#pragma unroll
    for (int i = 0; i < kKeys / 2; ++i) {
      largest[row_of(i)] = ptx::max_or_nan(largest[row_of(i)], sums[i]);
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float maximum = quad_max_or_nan(largest[r]) * row[r].scale;
      const float before = row[r].reference;
      if (!(maximum - before <= kReferenceSlack)) row[r].reference = maximum;
      shrink[r] = ptx::exp2_approximate(before - row[r].reference);
    }
    if (__any_sync(~0u, shrink[0] != 1.0f || shrink[1] != 1.0f)) {
#pragma unroll
      for (int i = 0; i < kHead / 2; ++i) output[i] *= shrink[row_of(i)];
#pragma unroll
      for (int r = 0; r < 2; ++r) row[r].sum *= shrink[r];
    }
  }
};

}  // namespace vidc::ring_attention
