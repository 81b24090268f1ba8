// Attention over an 8-bit ring on any GPU with matrix units; ring_attention.h documents it.
//
// Products are in float16, which represents every INT8 and E4M3 number exactly, and sums in
// float32; softmax weights are rounded to float16. A warp has 16 queries. A block's warps share
// tiles of keys and values, which stay in 8 bits until they are multiplied.
#pragma once

#include <cuda_fp16.h>

#include <cmath>

#include "ring_store.cuh"
#include "sm75_mma.cuh"
#include "sm75_online_softmax.cuh"

namespace vidc::ring_attention::portable {

constexpr int kWarps = 4;
constexpr int kThreads = 32 * kWarps;
constexpr int kWarpQueries = 16;
constexpr int kQueries = kWarpQueries * kWarps;
constexpr int kKeys = 64;
constexpr int kDepth = 16;  // Depth of a product, and slots of a group of transposed values.
constexpr int kVector = 16;  // Bytes of a copy.
constexpr int kPadding = 16;  // Rows begin four banks apart, so a warp's words cover all 32 banks.

template <int kHead>
struct Tile {
  __align__(16) uint8_t key[kKeys][kHead + kPadding];
  __align__(16) uint8_t value[kHead][kKeys + kPadding];
};

// Two packed halves of four numbers: the first two and the last two.
struct Halves {
  uint32_t low, high;
};

__device__ __forceinline__ __half2 both(float x) { return __float2half2_rn(x); }

__device__ __forceinline__ __half2 as_numbers(uint32_t bits) {
  return *reinterpret_cast<const __half2*>(&bits);
}

__device__ __forceinline__ uint32_t as_bits(__half2 numbers) {
  return *reinterpret_cast<const uint32_t*>(&numbers);
}

struct Int8 {
  static __device__ __forceinline__ Halves halves(uint32_t word) {
    // 0x64xy is 1024 + 0xxy, and x + 128 has no sign.
    const uint32_t positive = word ^ 0x80808080;
    return {pair(__byte_perm(positive, 0x64646464, 0x4140)),
            pair(__byte_perm(positive, 0x64646464, 0x4342))};
  }

 private:
  static __device__ __forceinline__ uint32_t pair(uint32_t bits) {
    return as_bits(__hfma2(as_numbers(bits), both(1.f), both(-1152.f)));
  }
};

struct E4m3 {
  static __device__ __forceinline__ Halves halves(uint32_t word) {
    return {pair(__byte_perm(word, 0, 0x1404)), pair(__byte_perm(word, 0, 0x3424))};
  }

 private:
  // Exponent and mantissa move to their places in float16, whose exponent bias differs by 8. NaN
  // has the bits of 480, the only number above 448: only it overflows, and infinity times 0 is NaN.
  static __device__ __forceinline__ uint32_t pair(uint32_t high) {
    const __half2 x = as_numbers((high & 0x80008000) | (high & 0x7f007f00) >> 1);
    const __half2 nan_or_zero = __hmul2(__hmul2(x, both(36864.f)), both(0.f));
    return as_bits(__hfma2(x, both(256.f), nan_or_zero));
  }
};

struct Unrounded {
  static __device__ __forceinline__ float2 rounded(float x, float y) { return make_float2(x, y); }
};

template <typename Number, int kHead>
__global__ void __launch_bounds__(kThreads) kernel(const VidcRingAttention a) {
  __shared__ Tile<kHead> tile;
  const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
  const int query_tiles = (a.queries + kQueries - 1) / kQueries;
  const int head = blockIdx.x / query_tiles % a.heads;
  const int64_t batch = blockIdx.x / query_tiles / a.heads;
  const int first_query = blockIdx.x % query_tiles * kQueries + warp * kWarpQueries + g;
  const int64_t length = *a.valid_length;
  const int valid = static_cast<int>(length < 1 ? 1 : length > a.slots ? a.slots : length);
  const auto* all_queries = static_cast<const uint8_t*>(a.query);
  const auto* keys = static_cast<const uint8_t*>(a.key) + (batch * a.slots * a.heads + head) * kHead;
  const auto* values = static_cast<const uint8_t*>(a.value) +
                       (batch * a.heads + head) * kHead * static_cast<int64_t>(a.value_slots);

  uint32_t queries[kHead / kDepth][4];
  float logit_scale[2];
  int64_t row[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int query = first_query + 8 * r;
    const bool there = query < a.queries;
    row[r] = there ? ((batch * a.queries + query) * a.heads + head) * kHead : -1;
    logit_scale[r] = 0.f;
    if (there)
      logit_scale[r] = a.query_scale[(batch * a.heads + head) * a.queries + query] *
                       (a.key_scale[head] * (1.4426950408889634f / sqrtf(kHead)));
#pragma unroll
    for (int step = 0; step < kHead / kDepth; ++step) {
      // The order of channels along a product's depth is free if it is the same for keys.
      uint32_t word = 0;
      if (there)
        word = *reinterpret_cast<const uint32_t*>(all_queries + row[r] + step * kDepth + 4 * q);
      const Halves halves = Number::halves(word);
      queries[step][r] = halves.low;
      queries[step][r + 2] = halves.high;
    }
  }

  float output[kHead / 8][4] = {};
  OnlineSoftmax<Unrounded> softmax;
  for (int first = 0; first < valid; first += kKeys) {
    __syncthreads();
    for (int i = threadIdx.x; i < kKeys * kHead / kVector; i += kThreads) {
      const int key = i / (kHead / kVector), channel = i % (kHead / kVector) * kVector;
      uint4 copied = make_uint4(0, 0, 0, 0);
      if (first + key < valid) {
        const int64_t at = static_cast<int64_t>(first + key) * a.heads * kHead + channel;
        copied = *reinterpret_cast<const uint4*>(keys + at);
      }
      *reinterpret_cast<uint4*>(&tile.key[key][channel]) = copied;
    }
    for (int i = threadIdx.x; i < kHead * kKeys / kVector; i += kThreads) {
      const int channel = i / (kKeys / kVector), place = i % (kKeys / kVector) * kVector;
      uint4 copied = make_uint4(0, 0, 0, 0);
      if (first + place < valid) {
        const int64_t at = static_cast<int64_t>(channel) * a.value_slots + first + place;
        copied = *reinterpret_cast<const uint4*>(values + at);
      }
      *reinterpret_cast<uint4*>(&tile.value[channel][place]) = copied;
    }
    __syncthreads();

    float weights[kKeys / 8][4] = {};
#pragma unroll
    for (int step = 0; step < kHead / kDepth; ++step) {
#pragma unroll
      for (int i = 0; i < kKeys / 8; ++i) {
        const uint8_t* at = &tile.key[8 * i + g][step * kDepth + 4 * q];
        const Halves key = Number::halves(*reinterpret_cast<const uint32_t*>(at));
        mma::multiply(weights[i], queries[step], key.low, key.high);
      }
    }
    softmax.weigh(weights, output, logit_scale, valid - first - 2 * q);
#pragma unroll
    for (int step = 0; step < kKeys / kDepth; ++step) {
      uint32_t left[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* two = &weights[2 * step + i / 2][i % 2 * 2];
        const __half2 rounded = __floats2half2_rn(two[0], two[1]);
        left[i] = *reinterpret_cast<const uint32_t*>(&rounded);
      }
#pragma unroll
      for (int i = 0; i < kHead / 8; ++i) {
        const uint8_t* at = &tile.value[8 * i + g][step * kDepth + 4 * q];
        const Halves value = Number::halves(*reinterpret_cast<const uint32_t*>(at));
        mma::multiply(output[i], left, value.low, value.high);
      }
    }
  }

  const float* scale = a.value_scale + head * kHead;
  const float* mean = a.value_mean + head * kHead;
  const float factor = a.output_scale == nullptr ? 1.f : 1.f / *a.output_scale;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float share = softmax.share(r);
    if (row[r] < 0) continue;
#pragma unroll
    for (int i = 0; i < kHead / 8; ++i) {
      const int channel = 8 * i + 2 * q;
      store(a.output, a.output_type, row[r] + channel, factor,
            __fmaf_rn(output[i][2 * r] * share, scale[channel], mean[channel]),
            __fmaf_rn(output[i][2 * r + 1] * share, scale[channel + 1], mean[channel + 1]));
    }
  }
}

}  // namespace vidc::ring_attention::portable
