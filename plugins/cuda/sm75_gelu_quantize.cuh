// GELU, tanh approximation. A thread has 8 channels of several rows and reads their mean once.
#pragma once

#include "sm75_vector.cuh"

namespace vidc {

struct GeluQuantize {
  const void* x;
  const float* output_scale;  // [1], null unless the output is quantized
  const float* output_mean;   // [width], null for zeros
  void* output;
  uint32_t rows;
  uint32_t row;  // vectors of a row
};

// x / 2 (1 + tanh(u)) is x / (1 + exp(-2 u)), which is accurate where tanh is close to -1.
__device__ __forceinline__ float gelu(float x) {
  constexpr float kTwice = -2.f * 0.7978845608028654f;  // -2 sqrt(2 / pi)
  const float u = kTwice * (x + 0.044715f * x * x * x);
  return __fdividef(x, 1.f + __expf(u));
}

constexpr int kGeluThreads = 128;
constexpr int kGeluRows = 6;  // rows of a thread, loaded concurrently

template <typename X, typename Output>
__global__ void __launch_bounds__(kGeluThreads) gelu_quantize_kernel(const GeluQuantize given) {
  const uint32_t thread = blockIdx.x * kGeluThreads + threadIdx.x;
  const uint32_t group = thread / given.row, column = thread - group * given.row;
  const uint32_t first = group * kGeluRows;
  const auto at = [&](int step) {
    return (static_cast<int64_t>(first + step) * given.row + column) * kVector;
  };
  Raw<X> raw[kGeluRows];
#pragma unroll
  for (int step = 0; step < kGeluRows; ++step)
    if (first + step < given.rows) raw[step] = load_once(static_cast<const X*>(given.x) + at(step));
  float mean[kVector] = {};
  if (given.output_mean && first < given.rows)
    unpack(load_shared(given.output_mean + column * kVector), mean);
  const float inverse = given.output_scale ? 1.f / __ldg(given.output_scale) : 1.f;
#pragma unroll
  for (int step = 0; step < kGeluRows; ++step) {
    if (first + step >= given.rows) return;
    float x[kVector];
    unpack(raw[step], x);
#pragma unroll
    for (int i = 0; i < kVector; ++i) x[i] = (gelu(x[i]) - mean[i]) * inverse;
    store(static_cast<Output*>(given.output) + at(step), x);
  }
}

}  // namespace vidc
