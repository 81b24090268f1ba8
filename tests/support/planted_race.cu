// The norm's kernel by itself, for a tool that looks for races: tests/support/planted_race.py takes
// the barrier out of its sums, or leaves it in.

#include <cuda_runtime.h>

#include <cstdio>

#include "sm75_norm_modulate_quantize.cuh"

constexpr int kTokens = 4, kWidth = 2048;  // Of two warps.

float* zeros(size_t count) {
  void* memory = nullptr;
  if (cudaMalloc(&memory, count * sizeof(float)) != cudaSuccess) return nullptr;
  cudaMemset(memory, 0, count * sizeof(float));
  return static_cast<float*>(memory);
}

int main() {
  vidc::NormModulateQuantize given{};
  given.x = zeros(kTokens * kWidth);
  given.shift = zeros(kWidth);
  given.scale = zeros(kWidth);
  given.output = zeros(kTokens * kWidth);
  given.tokens = given.frame_tokens = kTokens;
  given.frames = 1;
  given.width = kWidth;
  given.eps = 1;
  const int warps = (kWidth + vidc::kNormWarpWidth - 1) / vidc::kNormWarpWidth;
  vidc::norm_modulate_quantize_kernel<float, float, false><<<kTokens, 32 * warps>>>(given);
  const cudaError_t error = cudaDeviceSynchronize();
  std::puts(error == cudaSuccess && warps > 1 ? "launched" : cudaGetErrorString(error));
  return error == cudaSuccess ? 0 : 1;
}
