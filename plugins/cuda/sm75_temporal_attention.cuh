// Attention over the frames of a clip: see the reference, vidc.plugins.ops.temporal_attention.
//
// A warp has one pixel and head. It reads queries, keys and values once, as vectors of 16 bytes from
// memory to the registers that matrix products take, without shared memory: the order of a
// product's depth and of its columns is free, so each lane multiplies the channels that it loaded.
#pragma once

#include "sm75_attention_element.cuh"
#include "sm75_online_softmax.cuh"

namespace vidc {

constexpr int kFrameHead = 64;      // channels of a head
constexpr int kFrameTile = 16;      // frames of a matrix tile
constexpr int kMostFrameTiles = 2;  // of a clip
constexpr int kFrameWarps = 4;      // of a block

struct TemporalAttention {
  const void* query;
  const void* key;
  const void* value;
  void* output;
  uint32_t items;      // pixels times heads of all videos
  uint32_t per_frame;  // those of a frame
  int frames;
};

// 16 bytes of a row, or zeros outside.
__device__ __forceinline__ uint4 vector_or_zeros(const uint16_t* from, bool there) {
  return there ? __ldcs(reinterpret_cast<const uint4*>(from)) : make_uint4(0, 0, 0, 0);
}

// Rows g and g + 8 of a tile, where this is lane 4 g + q: channels from 8 q and from 32 + 8 q on.
struct FrameRows {
  uint4 at[2][2];  // [row][half of the channels]

  __device__ __forceinline__ void load(const uint16_t* from, int64_t stride, int first, int frames) {
    const int lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const int frame = first + 8 * row + g;
#pragma unroll
      for (int half = 0; half < 2; ++half)
        at[row][half] = vector_or_zeros(from + frame * stride + 32 * half + 8 * q, frame < frames);
    }
  }

  // The two words that the lane has in step `step` of a product over channels.
  __device__ __forceinline__ uint2 words(int row, int step) const {
    const uint4& vector = at[row][step / 2];
    return step % 2 ? make_uint2(vector.z, vector.w) : make_uint2(vector.x, vector.y);
  }
};

template <typename Element, int kTiles>
__global__ void __launch_bounds__(32 * kFrameWarps)
    temporal_attention_kernel(const TemporalAttention a) {
  const int lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
  const uint32_t item = blockIdx.x * kFrameWarps + threadIdx.x / 32;
  if (item >= a.items) return;  // The whole warp.
  const uint32_t video = item / a.per_frame;
  const int64_t stride = static_cast<int64_t>(a.per_frame) * kFrameHead;  // from frame to frame
  const int64_t first = video * a.frames * stride +
                        static_cast<int64_t>(item - video * a.per_frame) * kFrameHead;
  const uint16_t* queries = static_cast<const uint16_t*>(a.query) + first;
  const uint16_t* keys = static_cast<const uint16_t*>(a.key) + first;
  const uint16_t* values = static_cast<const uint16_t*>(a.value) + first;

  FrameRows key[kTiles];
  uint4 value[kTiles][4];  // frames 2 q, 2 q + 1, 2 q + 8, 2 q + 9 of a tile, channels from 8 g on
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    key[tile].load(keys, stride, kFrameTile * tile, a.frames);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int frame = kFrameTile * tile + 2 * q + i % 2 + i / 2 * 8;
      value[tile][i] = vector_or_zeros(values + frame * stride + 8 * g, frame < a.frames);
    }
  }

  const float log2e_over_root = 1.4426950408889634f / sqrtf(kFrameHead);
  const float scale[2] = {log2e_over_root, log2e_over_root};
#pragma unroll 1
  for (int from = 0; from < a.frames; from += kFrameTile) {
    FrameRows query;
    query.load(queries, stride, from, a.frames);
    float weights[2 * kTiles][4] = {};
#pragma unroll
    for (int step = 0; step < kFrameHead / 16; ++step) {
      const uint2 upper = query.words(0, step), lower = query.words(1, step);
      const uint32_t left[4] = {upper.x, lower.x, upper.y, lower.y};
#pragma unroll
      for (int i = 0; i < 2 * kTiles; ++i) {
        const uint2 right = key[i / 2].words(i % 2, step);
        Element::multiply(weights[i], left, right.x, right.y);
      }
    }
    float output[kFrameHead / 8][4] = {};
    ring_attention::OnlineSoftmax<Element> softmax;
    softmax.weigh(weights, output, scale, a.frames - 2 * q);
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      uint32_t left[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* pair = &weights[2 * tile + i / 2][i % 2 * 2];
        left[i] = Element::pack(pair[0], pair[1]);
      }
      // Column g of product i is channel 8 g + i.
#pragma unroll
      for (int word = 0; word < 4; ++word) {
        uint32_t of_frame[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const uint4& vector = value[tile][i];
          of_frame[i] = word == 0 ? vector.x : word == 1 ? vector.y : word == 2 ? vector.z : vector.w;
        }
        // The lower halves of two words, then the upper ones.
        Element::multiply(output[2 * word], left, __byte_perm(of_frame[0], of_frame[1], 0x5410),
                          __byte_perm(of_frame[2], of_frame[3], 0x5410));
        Element::multiply(output[2 * word + 1], left,
                          __byte_perm(of_frame[0], of_frame[1], 0x7632),
                          __byte_perm(of_frame[2], of_frame[3], 0x7632));
      }
    }
    // Columns 2 q and 2 q + 1 of all products are 16 channels from 16 q on.
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const float share = softmax.share(row);
      const int frame = from + 8 * row + g;
      if (frame >= a.frames) continue;
      uint16_t* to = static_cast<uint16_t*>(a.output) + first + frame * stride + 16 * q;
#pragma unroll
      for (int column = 0; column < 2; ++column) {
        uint32_t words[4];
#pragma unroll
        for (int i = 0; i < 4; ++i)
          words[i] = Element::pack(output[2 * i][2 * row + column] * share,
                                   output[2 * i + 1][2 * row + column] * share);
        reinterpret_cast<uint4*>(to)[column] = make_uint4(words[0], words[1], words[2], words[3]);
      }
    }
  }
}

}  // namespace vidc
