// One step of the sampler: the clean latent from the flow, and noise on it for the next step.
#pragma once

#include <cstdint>

namespace vidc {

struct Renoise {
  float* latent;  // in place
  const float* flow;
  const float* noise;
  int64_t elements;
  float sigma;
  float next_sigma;
};

// As torch.lerp has it, from the end that is nearer.
__device__ __forceinline__ float renoised(float latent, float flow, float noise, float sigma,
                                          float next_sigma) {
  const float clean = latent - sigma * flow;
  return next_sigma < 0.5f ? clean + next_sigma * (noise - clean)
                           : noise - (noise - clean) * (1.f - next_sigma);
}

__global__ void renoise_kernel(const Renoise given) {
  const int64_t at = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * 4;
  if (at + 4 <= given.elements) {
    auto* latent = reinterpret_cast<float4*>(given.latent + at);
    const float4 x = *latent;
    const float4 flow = __ldcs(reinterpret_cast<const float4*>(given.flow + at));
    const float4 noise = __ldcs(reinterpret_cast<const float4*>(given.noise + at));
    *latent = make_float4(renoised(x.x, flow.x, noise.x, given.sigma, given.next_sigma),
                          renoised(x.y, flow.y, noise.y, given.sigma, given.next_sigma),
                          renoised(x.z, flow.z, noise.z, given.sigma, given.next_sigma),
                          renoised(x.w, flow.w, noise.w, given.sigma, given.next_sigma));
    return;
  }
  for (int64_t i = at; i < given.elements; ++i)
    given.latent[i] =
        renoised(given.latent[i], given.flow[i], given.noise[i], given.sigma, given.next_sigma);
}

}  // namespace vidc
