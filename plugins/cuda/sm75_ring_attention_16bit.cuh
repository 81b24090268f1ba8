// Attention over a 16-bit ring on any GPU with matrix units; ring_attention_16bit.h documents it.
//
// A warp has 16 queries; a block's warps share a tile of keys and one of values. Values are copied
// during the computation of logits, the next keys during the product with values.
#pragma once

#include <cmath>

#include "ring_attention_16bit.h"
#include "sm75_attention_element.cuh"
#include "sm75_copy.cuh"
#include "sm75_mma.cuh"
#include "sm75_online_softmax.cuh"

namespace vidc::ring_attention::of_16_bits {

using ring_attention::Bfloat16;
using ring_attention::Float16;

constexpr int kWarps = 4;
constexpr int kThreads = 32 * kWarps;
constexpr int kWarpQueries = 16;
constexpr int kQueries = kWarpQueries * kWarps;
constexpr int kKeys = 64;
constexpr int kDepth = 16;  // Depth of a product.
constexpr int kVector = 8;  // Elements of a copy.
constexpr int kPadding = 8;  // Elements; eight rows of a matrix then cover all 32 banks.

template <int kHead>
struct Tile {
  __align__(16) uint16_t key[kKeys][kHead + kPadding];
  __align__(16) uint16_t value[kKeys][kHead + kPadding];
};

// Copies the rows of a tile from slot `first` of one head. Slots that are not valid become zeros:
// their content may be NaN, and zero times NaN is NaN.
template <int kHead>
__device__ __forceinline__ void copy_rows(uint16_t (&to)[kKeys][kHead + kPadding],
                                          const uint16_t* ring, int64_t row, int first, int valid) {
#pragma unroll
  for (int i = threadIdx.x; i < kKeys * kHead / kVector; i += kThreads) {
    const int key = i / (kHead / kVector), channel = i % (kHead / kVector) * kVector;
    const bool there = first + key < valid;
    const int64_t at = there ? (first + key) * row + channel : 0;
    copy::begin(&to[key][channel], ring + at, there);
  }
  copy::commit();
}

template <typename Element, int kHead>
__global__ void __launch_bounds__(kThreads) kernel(const VidcRingAttention16Bit a) {
  __shared__ Tile<kHead> tile;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
  const int query_tiles = (a.queries + kQueries - 1) / kQueries;
  const int head = blockIdx.x / query_tiles % a.heads;
  const int64_t batch = blockIdx.x / query_tiles / a.heads;
  const int first_query = blockIdx.x % query_tiles * kQueries + warp * kWarpQueries + g;
  const int64_t length = *a.valid_length;
  const int valid = static_cast<int>(length < 1 ? 1 : length > a.slots ? a.slots : length);
  const int64_t token = static_cast<int64_t>(a.heads) * kHead;
  const int64_t first_row = batch * a.slots * token + head * kHead;
  const uint16_t* keys = static_cast<const uint16_t*>(a.key) + first_row;
  const uint16_t* values = static_cast<const uint16_t*>(a.value) + first_row;
  copy_rows<kHead>(tile.key, keys, token, 0, valid);

  uint32_t queries[kHead / kDepth][4] = {};
  int64_t row[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int query = first_query + 8 * r;
    row[r] = query < a.queries ? ((batch * a.queries + query) * a.heads + head) * kHead : -1;
    if (row[r] < 0) continue;
    const uint16_t* from = static_cast<const uint16_t*>(a.query) + row[r] + 2 * q;
#pragma unroll
    for (int step = 0; step < kHead / kDepth; ++step) {
      queries[step][r] = *reinterpret_cast<const uint32_t*>(from + step * kDepth);
      queries[step][r + 2] = *reinterpret_cast<const uint32_t*>(from + step * kDepth + 8);
    }
  }

  const float log2e_over_root = 1.4426950408889634f / sqrtf(kHead);
  const float scale[2] = {log2e_over_root, log2e_over_root};
  float output[kHead / 8][4] = {};
  OnlineSoftmax<Element> softmax;
  for (int first = 0; first < valid; first += kKeys) {
    copy_rows<kHead>(tile.value, values, token, first, valid);
    copy::wait<1>();
    __syncthreads();
    float weights[kKeys / 8][4] = {};
#pragma unroll
    for (int step = 0; step < kHead / kDepth; ++step) {
#pragma unroll
      for (int i = 0; i < kKeys / 8; i += 2) {
        uint32_t two[4];
        mma::load(two, &tile.key[8 * i + lane / 16 * 8 + lane % 8][step * kDepth + lane / 8 % 2 * 8]);
        Element::multiply(weights[i], queries[step], two[0], two[1]);
        Element::multiply(weights[i + 1], queries[step], two[2], two[3]);
      }
    }
    __syncthreads();
    copy_rows<kHead>(tile.key, keys, token, first + kKeys, valid);
    softmax.weigh(weights, output, scale, valid - first - 2 * q);
    copy::wait<1>();
    __syncthreads();
#pragma unroll
    for (int step = 0; step < kKeys / kDepth; ++step) {
      uint32_t left[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* pair = &weights[2 * step + i / 2][i % 2 * 2];
        left[i] = Element::pack(pair[0], pair[1]);
      }
#pragma unroll
      for (int i = 0; i < kHead / 8; i += 2) {
        uint32_t two[4];
        mma::load_transposed(two, &tile.value[step * kDepth + lane % 16][8 * i + lane / 16 * 8]);
        Element::multiply(output[i], left, two[0], two[1]);
        Element::multiply(output[i + 1], left, two[2], two[3]);
      }
    }
    __syncthreads();
  }

#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float share = softmax.share(r);
    if (row[r] < 0) continue;
    uint16_t* to = static_cast<uint16_t*>(a.output) + row[r] + 2 * q;
#pragma unroll
    for (int i = 0; i < kHead / 8; ++i)
      *reinterpret_cast<uint32_t*>(to + 8 * i) =
          Element::pack(output[i][2 * r] * share, output[i][2 * r + 1] * share);
  }
}

}  // namespace vidc::ring_attention::of_16_bits
