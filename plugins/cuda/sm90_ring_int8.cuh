// Ring attention in INT8, for a warpgroup. For each block of 128 keys it
//
//   1. multiplies queries and keys: exact sums in int32, which start at 0x4b400000. These are the bits
//      of the float 1.5 * 2^23, whose unit is 1, so that the sums' bits are floats already, only
//      larger by 1.5 * 2^23 ("biased"). |sum| <= 127 * 127 * 128 < 2^22, so it fits.
//   2. takes each row's maximum over this block alone and rounds 255 * exp2(logit - maximum) to uint8.
//   3. multiplies that with the values: exact sums in int32 that start from zero for each block.
//   4. adds them to the output in float32, times exp2(the block's maximum - a reference). The
//      reference is the row's first maximum; it moves only when a later one exceeds it by 2^64, so
//      that the output is hardly ever rescaled.
//
// The sum of a row's weights is that of the rounded ones, so that the weights sum to one exactly.

#pragma once

#include <cuda_fp16.h>

#include "sm90_ring_rows.cuh"
#include "sm90_ring_tiles.cuh"
#include "sm90_wgmma_int8.cuh"

namespace vidc::ring_attention {

// A warpgroup's share of one tile: 64 queries. step() of sm90_ring_attention.cuh documents its
// functions.
template <int kHeadDim>
struct Int8Tile {
  static constexpr int kHead = kHeadDim;
  using Product = int32_t;
  static constexpr int kGroups = 2;
  static constexpr int kRegisters = 240;
  static constexpr int kOnes = 0;
  static constexpr bool kOverlaps = true;

  static constexpr int32_t kBias = 0x4b400000;
  // Minus infinity: less than any sum also as an integer, and its weight is zero for any scale.
  static constexpr int32_t kMasked = static_cast<int32_t>(0xff800000);
  static constexpr float kLargestWeight = 255.0f;
  static constexpr float kReferenceSlack = 64.0f;

  struct Row {
    // Factor from a biased sum to a logit in base 2.
    float scale;
    // Largest logit of the last block, biased like the sums, and the one that the output is
    // relative to.
    float maximum;
    float reference;
    // Factor of the last block's products when they are added to the output.
    float factor;
    // Sum of the weights of the thread's columns.
    float sum;
  };

  int32_t sums[kKeys / 2];
  // In the low bytes of both halves; sums[2 i] and its neighbor are in rounded[i].
  uint32_t rounded[kKeys / 4];
  uint32_t weights[kKeys / kDepth][4];
  int32_t added[kHead / 2];
  float output[kHead / 2];
  Row row[2];

  // The state after a block that added nothing.
  __device__ __forceinline__ void begin() {
#pragma unroll
    for (int i = 0; i < kHead / 2; ++i) {
      output[i] = 0.0f;
      added[i] = 0;
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      row[r].sum = row[r].factor = 0.0f;
      row[r].reference = -INFINITY;
    }
  }

  __device__ __forceinline__ void clear_sums() {
#pragma unroll
    for (int i = 0; i < kKeys / 2; ++i) sums[i] = kBias;
    ptx::pin(sums);
  }

  __device__ __forceinline__ void issue_logits(uint32_t query, uint32_t key) {
    ptx::products_fence();
#pragma unroll
    for (int d = 0; d < kHead; d += kDepth) {
      ptx::multiply_s8_s8(sums, ptx::operand<kHead>(query, d), ptx::operand<kHead>(key, d), true);
    }
    ptx::products_commit();
  }

  __device__ __forceinline__ int32_t product(int i) const { return sums[i] - kBias; }

  __device__ __forceinline__ void mask(int valid) {
    if (valid >= kKeys) return;
#pragma unroll
    for (int i = 0; i < kKeys / 2; ++i) {
      if (key_of(i) >= valid) sums[i] = kMasked;
    }
  }

  __device__ __forceinline__ void exponentiate() {
    // Biased sums are positive floats, which compare like their bits.
    int32_t largest[2] = {kMasked, kMasked};
#pragma unroll
    for (int i = 0; i < kKeys / 2; ++i) largest[row_of(i)] = max(largest[row_of(i)], sums[i]);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      // Rounded up, so no weight exceeds 1: 256 would become 0 in a byte.
      row[r].maximum = __fmul_ru(__int_as_float(quad_max(largest[r])), row[r].scale);
    }
#pragma unroll
    for (int i = 0; i < kKeys / 4; ++i) {
      const Row& own = row[row_of(2 * i)];
      float weight[2];
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        weight[j] = ptx::exp2_approximate(
            __fmaf_rn(__int_as_float(sums[2 * i + j]), own.scale, -own.maximum));
      }
      rounded[i] = round_two(weight[0], weight[1]);
    }
    ptx::pin(rounded);
    move_references();
  }

  // The left operand of the product with the values. A thread's columns of 16 keys become four
  // neighboring ones of the operand: the ring's order of keys is made for this.
  __device__ __forceinline__ void take_weights() {
#pragma unroll
    for (int i = 0; i < kKeys / 8; ++i) {
      const uint32_t* two = &rounded[i / 2 * 4 + i % 2];
      weights[i / 4][i % 4] = __byte_perm(two[0], two[2], 0x6420);
    }
#pragma unroll
    for (int k = 0; k < kKeys / kDepth; ++k) ptx::pin(weights[k]);
  }

  // Adds the last block's products to the output, and the next one's weights to the rows' sums.
  __device__ __forceinline__ void add() {
    add_last();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      row[r].factor = ptx::exp2_approximate(row[r].maximum - row[r].reference);
      uint32_t sum = 0;
#pragma unroll
      for (int i = 0; i < kKeys / 16; ++i) {
        sum = __dp4a(weights[i / 2][i % 2 * 2 + r], 0x01010101u, sum);
      }
      row[r].sum = __fmaf_rn(static_cast<float>(sum), row[r].factor, row[r].sum);
    }
  }

  __device__ __forceinline__ void issue_values(uint32_t value) {
    ptx::pin(added);
    ptx::products_fence();
#pragma unroll
    for (int k = 0; k < kKeys / kDepth; ++k) {
      ptx::multiply_u8_s8(added, weights[k], ptx::operand<kKeys>(value, k * kDepth), k > 0);
    }
    ptx::products_commit();
  }

  __device__ __forceinline__ void values_done() { ptx::pin(added); }

  __device__ __forceinline__ void add_last() {
#pragma unroll
    for (int i = 0; i < kHead / 2; ++i) {
      output[i] = __fmaf_rn(static_cast<float>(added[i]), row[row_of(i)].factor, output[i]);
    }
  }

  __device__ __forceinline__ void sum_rows() {
#pragma unroll
    for (int r = 0; r < 2; ++r) row[r].sum = quad_sum(row[r].sum);
  }

  static __device__ __forceinline__ void write_ones(Shared<Int8Tile>&) {}

 private:
  // 255 a and 255 b, rounded, in the low bytes of both halves: in fp16 the unit of 1024 is 1.
  static __device__ __forceinline__ uint32_t round_two(float a, float b) {
    const __half2 sum = __hfma2(__floats2half2_rn(a, b), __float2half2_rn(kLargestWeight),
                                __float2half2_rn(1024.0f));
    return *reinterpret_cast<const uint32_t*>(&sum);
  }

  // Moves a row's reference when its maximum has risen too far above.
  __device__ __forceinline__ void move_references() {
    const float above =
        fmaxf(row[0].maximum - row[0].reference, row[1].maximum - row[1].reference);
    if (__any_sync(~0u, above > kReferenceSlack)) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float moved = fmaxf(row[r].maximum, row[r].reference);
        const float shrink = ptx::exp2_approximate(row[r].reference - moved);
        row[r].reference = moved;
        row[r].factor *= shrink;
        row[r].sum *= shrink;
#pragma unroll
        for (int i = 0; i < kHead / 4; ++i) output[i / 2 * 4 + 2 * r + i % 2] *= shrink;
      }
    }
  }
};

}  // namespace vidc::ring_attention
