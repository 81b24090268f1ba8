// Layer normalisation without weights, then a shift and scale for each latent frame.
// A block has a token, a thread 8 channels, which stay in its registers from load to store.
#pragma once

#include "sm75_sum.cuh"
#include "sm75_vector.cuh"

namespace vidc {

struct NormModulateQuantize {
  const void* x;              // [batch, tokens, width]
  const float* shift;         // rows of [batch, frames, width]
  const float* scale;         // the same
  const float* output_scale;  // [1], null where the output is not quantised
  void* output;
  int64_t shift_batch_stride, shift_frame_stride;
  int64_t scale_batch_stride, scale_frame_stride;
  int tokens;
  int frame_tokens;
  int width;
  float eps;
};

// How many blocks of 256 threads a multiprocessor has threads for; registers are not to limit them,
// for it takes many loads under way to fill the memory's bandwidth.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
constexpr int kBlocks = 4;
#else
constexpr int kBlocks = 6;
#endif

template <typename X, typename Output, int Threads>
__global__ void __launch_bounds__(Threads, Threads == 256 ? kBlocks : 1)
    norm_modulate_quantize_kernel(const NormModulateQuantize given) {
  __shared__ float sums[kWarps], squares[kWarps];
  const int channel = threadIdx.x * kVector;
  const bool holds = channel < given.width;
  const int token = blockIdx.x, batch = blockIdx.y, frame = token / given.frame_tokens;
  const int64_t at = (static_cast<int64_t>(batch) * given.tokens + token) * given.width + channel;
  Raw<X> raw{};
  Raw<float> raw_shift{}, raw_scale{};
  if (holds) {
    raw = load_once(static_cast<const X*>(given.x) + at);
    raw_shift = load_shared(given.shift + batch * given.shift_batch_stride +
                            frame * given.shift_frame_stride + channel);
    raw_scale = load_shared(given.scale + batch * given.scale_batch_stride +
                            frame * given.scale_frame_stride + channel);
  }
  float x[kVector], shift[kVector], scale[kVector];
  unpack(raw, x);
  unpack(raw_shift, shift);
  unpack(raw_scale, scale);
  float sum = 0.f;
#pragma unroll
  for (int i = 0; i < kVector; ++i) sum += x[i];
  const float mean = block_sum(sum, sums) / given.width;
  // From the mean: the difference of two large sums would lose a small variance.
  float square = 0.f;
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    x[i] -= mean;
    square += x[i] * x[i];
  }
  const float deviation =
      rsqrtf(block_sum(holds ? square : 0.f, squares) / given.width + given.eps);
  if (!holds) return;
  const float inverse = given.output_scale ? 1.f / *given.output_scale : 1.f;
#pragma unroll
  for (int i = 0; i < kVector; ++i)
    x[i] = (x[i] * deviation * (1.f + scale[i]) + shift[i]) * inverse;
  store(static_cast<Output*>(given.output) + at, x);
}

}  // namespace vidc
