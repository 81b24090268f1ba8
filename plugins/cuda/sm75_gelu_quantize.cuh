// The tanh form of GELU. A thread has 8 elements at a time, twice.
#pragma once

#include "sm75_vector.cuh"

namespace vidc {

struct GeluQuantize {
  const void* x;
  const float* output_scale;  // [1], null where the output is not quantised
  const float* output_mean;   // [width], null where nothing is taken off
  void* output;
  int64_t vectors;
  uint32_t row;  // vectors of one
};

// x / 2 (1 + tanh(u)) is x / (1 + exp(-2 u)), which loses nothing where tanh is close to -1.
__device__ __forceinline__ float gelu(float x) {
  constexpr float kTwice = -2.f * 0.7978845608028654f;  // -2 sqrt(2 / pi)
  const float u = kTwice * (x + 0.044715f * x * x * x);
  return __fdividef(x, 1.f + __expf(u));
}

constexpr int kGeluThreads = 256;
constexpr int kGeluSteps = 2;  // of a thread, so that more loads are under way

template <typename X, typename Output>
__global__ void __launch_bounds__(kGeluThreads) gelu_quantize_kernel(const GeluQuantize given) {
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kGeluThreads * kGeluSteps + threadIdx.x;
  Raw<X> raw[kGeluSteps];
#pragma unroll
  for (int step = 0; step < kGeluSteps; ++step) {
    const int64_t vector = first + step * kGeluThreads;
    if (vector < given.vectors)
      raw[step] = load_once(static_cast<const X*>(given.x) + vector * kVector);
  }
  const uint32_t column = static_cast<uint32_t>(given.output_mean ? first % given.row : 0);
  const float inverse = given.output_scale ? 1.f / __ldg(given.output_scale) : 1.f;
#pragma unroll
  for (int step = 0; step < kGeluSteps; ++step) {
    const int64_t vector = first + step * kGeluThreads;
    if (vector >= given.vectors) return;
    float x[kVector];
    unpack(raw[step], x);
#pragma unroll
    for (int i = 0; i < kVector; ++i) x[i] = gelu(x[i]);
    if (given.output_mean) {
      float mean[kVector];
      unpack(load_shared(given.output_mean + (column + step * kGeluThreads) % given.row * kVector),
             mean);
#pragma unroll
      for (int i = 0; i < kVector; ++i) x[i] -= mean[i];
    }
#pragma unroll
    for (int i = 0; i < kVector; ++i) x[i] *= inverse;
    store(static_cast<Output*>(given.output) + vector * kVector, x);
  }
}

}  // namespace vidc
