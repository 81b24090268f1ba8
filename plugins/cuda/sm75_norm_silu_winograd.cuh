// The part of a network between two Winograd convolutions in time: see the reference,
// vidc.plugins.ops.norm_silu_winograd. 16 threads have one pixel of one video and go through its
// frames, two at a time, so that every input is read once.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

namespace vidc {

constexpr int kPixelThreads = 16;  // threads of a pixel
constexpr int kWinogradThreads = 128;
constexpr float kLeastNorm = 1e-12f;

struct NormSiluWinograd {
  const __half* m[4];      // products, or frames in the first
  const __half* bias;      // null: zeros
  const __half* residual;  // null: none
  const __half* gamma;
  const __half* past;
  __half* inputs;
  __half* last;
  __half* sum;
  int64_t pixels;  // of a frame
  int64_t batch;
  int pairs;  // of frames
};

// A thread's channels: Pairs neighbors, each 2 * kPixelThreads after the one before.
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

template <int Pairs>
__device__ __forceinline__ void store_sum(__half* to, const Channels<Pairs>& a, float factor,
                                          const Channels<Pairs>& b) {
#pragma unroll
  for (int i = 0; i < Pairs; ++i)
    reinterpret_cast<__half2*>(to)[i * kPixelThreads] =
        __floats2half2_rn(a.at[i].x + factor * b.at[i].x, a.at[i].y + factor * b.at[i].y);
}

// The sum over the threads of a pixel, which are half a warp.
__device__ __forceinline__ float pixel_sum(float value) {
#pragma unroll
  for (int offset = kPixelThreads / 2; offset; offset >>= 1)
    value += __shfl_xor_sync(~0u, value, offset);
  return value;
}

template <int Pairs, bool Products, bool Residual>
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
  const int64_t all = given.batch * given.pairs * frame;

  Channels<Pairs> gamma, bias{}, before, last;
  gamma.load(given.gamma + first);
  if (Products && given.bias) bias.load(given.bias + first);
  before.load(given.past + (2 * video) * frame + own);
  last.load(given.past + (2 * video + 1) * frame + own);
  for (int pair = 0; pair < given.pairs; ++pair) {
    const int64_t in_pairs = (video * given.pairs + pair) * frame + own;
    const int64_t in_frames = 2 * in_pairs - own;
    Channels<Pairs> even, odd;
    if constexpr (Products) {
      Channels<Pairs> m0, m1, m2, m3;
      m0.load(given.m[0] + in_pairs);
      m1.load(given.m[1] + in_pairs);
      m2.load(given.m[2] + in_pairs);
      m3.load(given.m[3] + in_pairs);
      even = m0;
      even.add(m1, 1.f);
      even.add(m2, 1.f);
      even.add(bias, 1.f);
      odd = m1;
      odd.add(m2, -1.f);
      odd.add(m3, -1.f);
      odd.add(bias, 1.f);
    } else {
      even.load(given.m[0] + in_frames);
      odd.load(given.m[0] + in_frames + frame);
    }
    if constexpr (Residual) {
      Channels<Pairs> to_even, to_odd;
      to_even.load(given.residual + in_frames);
      to_odd.load(given.residual + in_frames + frame);
      even.add(to_even, 1.f);
      odd.add(to_odd, 1.f);
      if (!outside) {
        store(given.sum + in_frames, even);
        store(given.sum + in_frames + frame, odd);
      }
    }
    const float scale = sqrtf(static_cast<float>(kChannels));
    even.activate(scale / fmaxf(sqrtf(pixel_sum(even.squares())), kLeastNorm), gamma);
    odd.activate(scale / fmaxf(sqrtf(pixel_sum(odd.squares())), kLeastNorm), gamma);
    if (!outside) {
      store_sum(given.inputs + in_pairs, before, -1.f, even);
      store_sum(given.inputs + all + in_pairs, last, 1.f, even);
      store_sum(given.inputs + 2 * all + in_pairs, even, -1.f, last);
      store_sum(given.inputs + 3 * all + in_pairs, last, -1.f, odd);
    }
    before = even;
    last = odd;
  }
  if (outside) return;
  store(given.last + (2 * video) * frame + own, before);
  store(given.last + (2 * video + 1) * frame + own, last);
}

}  // namespace vidc
