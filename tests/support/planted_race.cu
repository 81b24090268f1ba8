// The ring write's kernel by itself, for a tool that looks for races: tests/support/planted_race.py
// takes the barrier out of its sum, or leaves it in.

#include <cuda_runtime.h>

#include <cstdio>

#include "sm75_qk_norm_rope_ring_write.cuh"

constexpr int kTokens = 4, kHeadDim = 128, kWidth = 4 * kHeadDim;  // Of two warps.

void* zeros(size_t count) {
  void* memory = nullptr;
  if (cudaMalloc(&memory, count * sizeof(float)) != cudaSuccess) return nullptr;
  cudaMemset(memory, 0, count * sizeof(float));
  return memory;
}

int main() {
  vidc::QkNormRopeRingWrite given{};
  given.qk.qkv = zeros(3 * kTokens * kWidth);
  given.qk.query_weight = zeros(kWidth);
  given.qk.key_weight = zeros(kWidth);
  given.qk.cosine = static_cast<const float*>(zeros(kTokens * kHeadDim / 2));
  given.qk.sine = static_cast<const float*>(zeros(kTokens * kHeadDim / 2));
  given.qk.ring = {static_cast<const int64_t*>(zeros(2)), kTokens, 0};
  given.qk.tokens = kTokens;
  given.qk.width = kWidth;
  given.qk.head_dim = kHeadDim;
  given.qk.eps = 1;
  given.query = zeros(kTokens * kWidth);
  given.key_cache = zeros(kTokens * kWidth);
  given.value_cache = zeros(kTokens * kWidth);
  const int threads = kWidth / vidc::kVector;
  vidc::qk_norm_rope_ring_write_kernel<float><<<kTokens, threads>>>(given);
  const cudaError_t error = cudaDeviceSynchronize();
  std::puts(error == cudaSuccess && threads > 32 ? "launched" : cudaGetErrorString(error));
  return error == cudaSuccess ? 0 : 1;
}
