// A step of a clip's sampler: see the reference, vidc.plugins.ops.sampler_step. A thread has four
// neighboring elements of a frame. Products and sums are rounded one by one, as in the reference.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace vidc {

constexpr int kSamplerThreads = 256;
constexpr int kCoefficients = 5;  // timestep, keep, change, fresh, scale

struct SamplerStep {
  const float* velocity;
  const float* noise;  // null: none
  const float* guidance;
  const float* table;
  int64_t* progress;
  float* latent;
  float* sample;
  float* timestep;
  int64_t elements;  // of a frame's latent
  int64_t frames;
  int64_t steps;
};

template <typename Change>
__device__ __forceinline__ float4 each(const float4& a, const float4& b, Change change) {
  return make_float4(change(a.x, b.x), change(a.y, b.y), change(a.z, b.z), change(a.w, b.w));
}

// Sets the next step, once all blocks have read this one: the last block to arrive does it.
__device__ __forceinline__ void advance(const SamplerStep& given, int64_t next) {
  __syncthreads();
  if (threadIdx.x != 0) return;
  __threadfence();
  auto* arrived = reinterpret_cast<unsigned long long*>(given.progress + 1);
  const unsigned long long blocks = static_cast<unsigned long long>(gridDim.x) * gridDim.y;
  if (atomicAdd(arrived, 1ull) != blocks - 1) return;
  *arrived = 0;
  if (next < 0) return;
  given.progress[0] = next;
  *given.timestep = __ldg(given.table + next * kCoefficients);
}

template <int Predictions, bool Noise>
__global__ void __launch_bounds__(kSamplerThreads) sampler_step_kernel(const SamplerStep given) {
  const int64_t step = given.progress[0];
  const bool known = step >= 0 && step < given.steps;
  const int64_t next = known ? (step + 1) % given.steps : -1;
  const int64_t first =
      4 * (static_cast<int64_t>(blockIdx.x) * kSamplerThreads + threadIdx.x);
  const int64_t frame = blockIdx.y;
  if (known && first < given.elements) {
    const float* row = given.table + step * kCoefficients;
    const float keep = __ldg(row + 1), change = __ldg(row + 2), fresh = __ldg(row + 3),
                scale = __ldg(row + 4);
    const int64_t own = frame * given.elements + first;
    const auto at = [](const float* from) { return *reinterpret_cast<const float4*>(from); };
    const auto multiply = [](float a, float b) { return __fmul_rn(a, b); };
    const auto add = [](float a, float b) { return __fadd_rn(a, b); };
    const auto times = [&](const float4& a, float b) {
      return each(a, make_float4(b, b, b, b), multiply);
    };
    float4 velocity = at(given.velocity + own);
    if constexpr (Predictions == 2) {
      const float4 within = at(given.velocity + given.frames * given.elements + own);
      const float4 apart =
          each(within, velocity, [](float a, float b) { return __fsub_rn(a, b); });
      velocity = each(velocity, times(apart, __ldg(given.guidance + frame)), add);
    }
    float4 latent =
        each(times(at(given.latent + own), keep), times(velocity, change), add);
    if constexpr (Noise) {
      const float4 drawn = at(given.noise + next * given.frames * given.elements + own);
      latent = each(latent, times(drawn, fresh), add);
    }
    *reinterpret_cast<float4*>(given.latent + own) = latent;
    const float4 scaled = times(latent, scale);
#pragma unroll
    for (int n = 0; n < Predictions; ++n) {
      // Behind a frame's latent channels are as many of the image's.
      float* to = given.sample + (n * given.frames + frame) * 2 * given.elements + first;
      *reinterpret_cast<float4*>(to) = scaled;
    }
  }
  advance(given, next);
}

}  // namespace vidc
