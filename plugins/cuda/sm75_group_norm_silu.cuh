// GroupNorm and SiLU of [N, P, C]: see the reference, vidc.plugins.ops.group_norm_silu.
//
// Three kernels: sums of each group over a chunk of an image's pixels; a factor and an offset for
// each image and channel; and their application. A thread has 8 neighboring channels of every
// `rows`-th pixel of a chunk, so that all accesses are whole vectors of neighboring threads.
//
// The variance is the mean square less the squared mean, in float32. It loses digits if the mean is
// far from 0, but fewer than x lost when it was rounded to 16 bits.
#pragma once

#include "sm75_vector.cuh"

namespace vidc {

constexpr int kNormThreads = 320;   // most threads of a block
constexpr int kNormAhead = 4;       // vectors that a thread loads concurrently
constexpr int kMostGroups = 256;
constexpr int kGroupThreads = 1024;  // threads of a block of the second kernel; it has few blocks

struct GroupNormSilu {
  const void* x;
  const float* shift;  // null: zeros
  const void* weight;
  const void* bias;
  void* output;
  float2* sums;          // [images, chunks, groups]: values, squares
  float2* coefficients;  // [images, channels]: factor, offset
  int64_t pixels;        // of an image
  int64_t chunk;         // pixels of a chunk
  int channels;
  int groups;
  int chunks;
  float eps;
};

// A thread's pixels of its block's chunk, and its channels.
struct PixelChunk {
  __device__ __forceinline__ PixelChunk(const GroupNormSilu& given, int64_t of_image, int64_t index)
      : image(of_image),
        columns(given.channels / kVector),
        rows(static_cast<int>(blockDim.x) / columns),
        channel(static_cast<int>(threadIdx.x) % columns * kVector),
        first(index * given.chunk + static_cast<int>(threadIdx.x) / columns),
        end(index * given.chunk + given.chunk) {
    if (end > given.pixels) end = given.pixels;
  }

  // Offset of a pixel's vector.
  __device__ __forceinline__ int64_t at(const GroupNormSilu& given, int64_t pixel) const {
    return (image * given.pixels + pixel) * given.channels + channel;
  }

  int64_t image;
  int columns, rows, channel;
  int64_t first, end;
};

template <typename T>
__global__ void __launch_bounds__(kNormThreads) group_sums_kernel(const GroupNormSilu given) {
  __shared__ float2 partial[kNormThreads * kVector];  // [rows, channels]
  const PixelChunk own(given, blockIdx.y, blockIdx.x);
  float shift[kVector] = {}, values[kVector] = {}, squares[kVector] = {};
  if (given.shift) unpack(load_shared(given.shift + own.channel), shift);
  for (int64_t pixel = own.first; pixel < own.end; pixel += own.rows * kNormAhead) {
    Raw<T> raw[kNormAhead];
#pragma unroll
    for (int i = 0; i < kNormAhead; ++i)
      if (pixel + i * own.rows < own.end)
        raw[i] = load_shared(static_cast<const T*>(given.x) + own.at(given, pixel + i * own.rows));
#pragma unroll
    for (int i = 0; i < kNormAhead; ++i) {
      if (pixel + i * own.rows >= own.end) break;
      float x[kVector];
      unpack(raw[i], x);
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        x[j] += shift[j];
        values[j] += x[j];
        squares[j] += x[j] * x[j];
      }
    }
  }
#pragma unroll
  for (int j = 0; j < kVector; ++j)
    partial[threadIdx.x * kVector + j] = make_float2(values[j], squares[j]);
  __syncthreads();
  const int width = given.channels / given.groups;
  for (int group = static_cast<int>(threadIdx.x); group < given.groups;
       group += static_cast<int>(blockDim.x)) {
    float2 sum = make_float2(0.f, 0.f);
    for (int row = 0; row < own.rows; ++row) {
      for (int i = 0; i < width; ++i) {
        const float2 one = partial[row * given.channels + group * width + i];
        sum.x += one.x;
        sum.y += one.y;
      }
    }
    given.sums[(own.image * given.chunks + blockIdx.x) * given.groups + group] = sum;
  }
}

// One block for each image.
template <typename T>
__global__ void __launch_bounds__(kGroupThreads)
    group_coefficients_kernel(const GroupNormSilu given) {
  __shared__ float2 partial[kGroupThreads];  // [lanes, groups]
  __shared__ float2 moments[kMostGroups];    // mean, 1 / deviation
  const int64_t image = blockIdx.x;
  const int thread = static_cast<int>(threadIdx.x);
  const int lanes = kGroupThreads / given.groups, width = given.channels / given.groups;
  if (thread < lanes * given.groups) {
    const int group = thread % given.groups;
    float2 sum = make_float2(0.f, 0.f);
#pragma unroll 4
    for (int chunk = thread / given.groups; chunk < given.chunks; chunk += lanes) {
      const float2 one = given.sums[(image * given.chunks + chunk) * given.groups + group];
      sum.x += one.x;
      sum.y += one.y;
    }
    partial[thread] = sum;
  }
  __syncthreads();
  if (thread < given.groups) {
    float2 sum = make_float2(0.f, 0.f);
    for (int lane = 0; lane < lanes; ++lane) {
      sum.x += partial[lane * given.groups + thread].x;
      sum.y += partial[lane * given.groups + thread].y;
    }
    const float count = static_cast<float>(given.pixels) * static_cast<float>(width);
    const float mean = sum.x / count;
    const float variance = fmaxf(sum.y / count - mean * mean, 0.f);
    moments[thread] = make_float2(mean, 1.f / sqrtf(variance + given.eps));
  }
  __syncthreads();
  for (int first = thread * kVector; first < given.channels; first += kGroupThreads * kVector) {
    float weight[kVector], bias[kVector], shift[kVector] = {};
    unpack(load_shared(static_cast<const T*>(given.weight) + first), weight);
    unpack(load_shared(static_cast<const T*>(given.bias) + first), bias);
    if (given.shift) unpack(load_shared(given.shift + first), shift);
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      const float2 of_group = moments[(first + j) / width];
      const float factor = of_group.y * weight[j];
      given.coefficients[image * given.channels + first + j] =
          make_float2(factor, bias[j] + (shift[j] - of_group.x) * factor);
    }
  }
}

// Goes backwards: the end of x, which the sums read last, may still be in the L2 cache.
template <typename T, bool Silu>
__global__ void __launch_bounds__(kNormThreads) group_apply_kernel(const GroupNormSilu given) {
  const PixelChunk own(given, gridDim.y - 1 - blockIdx.y, gridDim.x - 1 - blockIdx.x);
  float2 by[kVector];
  const float2* from = given.coefficients + own.image * given.channels + own.channel;
#pragma unroll
  for (int j = 0; j < kVector; ++j) by[j] = from[j];
  for (int64_t pixel = own.first; pixel < own.end; pixel += own.rows * kNormAhead) {
    Raw<T> raw[kNormAhead];
#pragma unroll
    for (int i = 0; i < kNormAhead; ++i)
      if (pixel + i * own.rows < own.end)
        raw[i] = load_once(static_cast<const T*>(given.x) + own.at(given, pixel + i * own.rows));
#pragma unroll
    for (int i = 0; i < kNormAhead; ++i) {
      if (pixel + i * own.rows >= own.end) break;
      float x[kVector];
      unpack(raw[i], x);
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        x[j] = x[j] * by[j].x + by[j].y;
        if constexpr (Silu) x[j] = __fdividef(x[j], 1.f + __expf(-x[j]));
      }
      store(static_cast<T*>(given.output) + own.at(given, pixel + i * own.rows), x);
    }
  }
}

}  // namespace vidc
