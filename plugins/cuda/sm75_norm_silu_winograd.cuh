// The part of a network between two Winograd convolutions in time: see the reference,
// vidc.plugins.ops.norm_silu_winograd. 16 threads have one pixel of one video and go through its
// frames, a tile at a time, so that every input is read once.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "sm75_winograd_tiles.cuh"

namespace vidc {

constexpr int kPixelThreads = 16;  // threads of a pixel
constexpr int kWinogradThreads = 128;
constexpr int kMostProducts = 6;
constexpr float kLeastNorm = 1e-12f;

struct NormSiluWinograd {
  const __half* m[kMostProducts];  // products, or frames in the first
  const __half* bias;              // null: zeros
  const __half* residual;          // null: none
  const __half* gamma;
  const __half* past;
  __half* inputs;
  __half* last;
  __half* sum;      // null: not kept
  int64_t pixels;  // of a frame
  int64_t batch;
  int tiles;  // of a video
};

// A thread's channels: `Pairs` pairs of neighbors, each pair 2 * kPixelThreads channels after the
// one before.
template <int Pairs>
struct Channels {
  float2 at[Pairs];

  __device__ __forceinline__ void load(const __half* from) {
#pragma unroll
    for (int i = 0; i < Pairs; ++i)
      at[i] = __half22float2(reinterpret_cast<const __half2*>(from)[i * kPixelThreads]);
  }

  __device__ __forceinline__ void add(const Channels& other, float factor) {
#pragma unroll
    for (int i = 0; i < Pairs; ++i) {
      at[i].x += factor * other.at[i].x;
      at[i].y += factor * other.at[i].y;
    }
  }

  __device__ __forceinline__ float squares() const {
    float sum = 0.f;
#pragma unroll
    for (int i = 0; i < Pairs; ++i) sum += at[i].x * at[i].x + at[i].y * at[i].y;
    return sum;
  }

  // Normalizes, applies SiLU and rounds to float16.
  __device__ __forceinline__ void activate(float inverse, const Channels& gamma) {
#pragma unroll
    for (int i = 0; i < Pairs; ++i) {
      const float a = at[i].x * inverse * gamma.at[i].x, b = at[i].y * inverse * gamma.at[i].y;
      at[i] = __half22float2(__floats2half2_rn(__fdividef(a, 1.f + __expf(-a)),
                                               __fdividef(b, 1.f + __expf(-b))));
    }
  }
};

template <int Pairs>
__device__ __forceinline__ void store(__half* to, const Channels<Pairs>& from) {
#pragma unroll
  for (int i = 0; i < Pairs; ++i)
    reinterpret_cast<__half2*>(to)[i * kPixelThreads] = __floats2half2_rn(from.at[i].x, from.at[i].y);
}

// The sum over the threads of a pixel, which are half a warp.
__device__ __forceinline__ float pixel_sum(float value) {
#pragma unroll
  for (int offset = kPixelThreads / 2; offset; offset >>= 1)
    value += __shfl_xor_sync(~0u, value, offset);
  return value;
}

template <int Pairs, int Tile, bool Products, bool Residual>
__global__ void __launch_bounds__(kWinogradThreads)
    norm_silu_winograd_kernel(const NormSiluWinograd given) {
  constexpr int kChannels = 2 * kPixelThreads * Pairs;
  const int64_t pixel =
      (static_cast<int64_t>(blockIdx.x) * kWinogradThreads + threadIdx.x) / kPixelThreads;
  const bool outside = pixel >= given.pixels;
  const int64_t video = blockIdx.y, first = 2 * (threadIdx.x % kPixelThreads);
  // A pixel outside is computed as the last one, for the sums over a warp, and not stored.
  const int64_t own = (outside ? given.pixels - 1 : pixel) * kChannels + first;
  const int64_t frame = given.pixels * kChannels;  // elements
  const int64_t all = given.batch * given.tiles * frame;

  Channels<Pairs> gamma, bias{};
  Channels<Pairs> at[Tile + 2];  // the last two activations, and those of a tile
  gamma.load(given.gamma + first);
  if (Products && given.bias) bias.load(given.bias + first);
  at[0].load(given.past + (2 * video) * frame + own);
  at[1].load(given.past + (2 * video + 1) * frame + own);
  for (int tile = 0; tile < given.tiles; ++tile) {
    const int64_t in_tiles = (video * given.tiles + tile) * frame + own;
    const int64_t in_frames = Tile * (in_tiles - own) + own;
    if constexpr (Products) {
#pragma unroll
      for (int i = 0; i < Tile; ++i) at[2 + i] = bias;
#pragma unroll
      for (int j = 0; j < Tile + 2; ++j) {
        Channels<Pairs> product;
        product.load(given.m[j] + in_tiles);
#pragma unroll
        for (int i = 0; i < Tile; ++i) {
          const float factor = Winograd<Tile>::output(i, j);
          if (factor != 0.f) at[2 + i].add(product, factor);
        }
      }
    } else {
#pragma unroll
      for (int i = 0; i < Tile; ++i) at[2 + i].load(given.m[0] + in_frames + i * frame);
    }
    if constexpr (Residual) {
#pragma unroll
      for (int i = 0; i < Tile; ++i) {
        Channels<Pairs> residual;
        residual.load(given.residual + in_frames + i * frame);
        at[2 + i].add(residual, 1.f);
      }
    }
    if (Products && given.sum && !outside) {
#pragma unroll
      for (int i = 0; i < Tile; ++i) store(given.sum + in_frames + i * frame, at[2 + i]);
    }
    const float scale = sqrtf(static_cast<float>(kChannels));
#pragma unroll
    for (int i = 0; i < Tile; ++i) {
      const float norm = sqrtf(pixel_sum(at[2 + i].squares()));
      at[2 + i].activate(scale / fmaxf(norm, kLeastNorm), gamma);
    }
    if (!outside) {
#pragma unroll
      for (int i = 0; i < Tile + 2; ++i) {
        Channels<Pairs> input{};
#pragma unroll
        for (int j = 0; j < Tile + 2; ++j) {
          const float factor = Winograd<Tile>::input(i, j);
          if (factor != 0.f) input.add(at[j], factor);
        }
        store(given.inputs + i * all + in_tiles, input);
      }
    }
    at[0] = at[Tile];
    at[1] = at[Tile + 1];
  }
  if (outside) return;
  store(given.last + (2 * video) * frame + own, at[0]);
  store(given.last + (2 * video + 1) * frame + own, at[1]);
}

}  // namespace vidc
