// Layer normalization without weights, then a shift and scale for each latent frame.
//
// A token stays in registers from load to store. One warp has all of a token of LongLive's width:
// its sums need no barrier, and what a barrier would hold up are the loads that fill the memory's
// bandwidth.
#pragma once

#include "sm75_sum.cuh"
#include "sm75_vector.cuh"

namespace vidc {

struct NormModulateQuantize {
  const void* x;              // [tokens, width], those of all the batch
  const float* shift;         // rows of [batch, frames, width]
  const float* scale;         // the same
  const float* output_scale;  // [1], null where the output is not quantized
  void* output;
  int64_t shift_batch_stride, shift_frame_stride;
  int64_t scale_batch_stride, scale_frame_stride;
  int tokens;
  int frame_tokens;
  int frames;  // of an element of the batch
  int width;
  float eps;
};

constexpr int kNormSteps = 12;  // quads of a thread, as far apart as the token has threads
constexpr int kNormWarpWidth = 32 * kNormSteps * kQuad;
constexpr int kNormBlockWarps = 8;

// Whole: each warp has a token that is just as wide as it takes. Else a block has one.
template <typename X, typename Output, bool Whole>
__global__ void __launch_bounds__(32 * kNormBlockWarps, 2)
    norm_modulate_quantize_kernel(const NormModulateQuantize given) {
  const int width = Whole ? kNormWarpWidth : given.width;
  const int threads = Whole ? 32 : blockDim.x;
  const int thread = Whole ? threadIdx.x % 32 : threadIdx.x;
  const int token = Whole ? blockIdx.x * kNormBlockWarps + threadIdx.x / 32 : blockIdx.x;
  if (token >= given.tokens) return;
  const int64_t row = static_cast<int64_t>(token) * width;
  const auto channel = [&](int step) { return (step * threads + thread) * kQuad; };
  const auto holds = [&](int step) { return Whole || channel(step) < width; };
  __shared__ float sums[kWarps], squares[kWarps];
  const auto sum_of_token = [](float value, float (&partial)[kWarps]) {
    return Whole ? warp_sum(value) : block_sum(value, partial);
  };

  const int frame = token / given.frame_tokens, batch = frame / given.frames;
  const int of_batch = frame - batch * given.frames;
  const float* shifts =
      given.shift + batch * given.shift_batch_stride + of_batch * given.shift_frame_stride;
  const float* scales =
      given.scale + batch * given.scale_batch_stride + of_batch * given.scale_frame_stride;
  Raw<X, kQuad> raw[kNormSteps];
#pragma unroll
  for (int step = 0; step < kNormSteps; ++step) {
    raw[step] = {};
    if (holds(step))
      raw[step] = load_once<kQuad>(static_cast<const X*>(given.x) + row + channel(step));
  }
  const float inverse = given.output_scale ? 1.f / __ldg(given.output_scale) : 1.f;
  float x[kNormSteps][kQuad], sum = 0.f;
#pragma unroll
  for (int step = 0; step < kNormSteps; ++step) {
    unpack(raw[step], x[step]);
#pragma unroll
    for (int i = 0; i < kQuad; ++i) sum += x[step][i];
  }
  const float mean = sum_of_token(sum, sums) / width;
  // From the mean: the difference of two large sums would lose a small variance.
  float square = 0.f;
#pragma unroll
  for (int step = 0; step < kNormSteps; ++step) {
    if (!holds(step)) continue;
#pragma unroll
    for (int i = 0; i < kQuad; ++i) {
      x[step][i] -= mean;
      square += x[step][i] * x[step][i];
    }
  }
  const float deviation = rsqrtf(sum_of_token(square, squares) / width + given.eps);

  const float factor = deviation * inverse;
#pragma unroll
  for (int step = 0; step < kNormSteps; ++step) {
    if (!holds(step)) continue;
    float shift[kQuad], scale[kQuad];
    unpack(load_shared<kQuad>(shifts + channel(step)), shift);
    unpack(load_shared<kQuad>(scales + channel(step)), scale);
#pragma unroll
    for (int i = 0; i < kQuad; ++i)
      x[step][i] = x[step][i] * (scale[i] * factor + factor) + shift[i] * inverse;
    store(static_cast<Output*>(given.output) + row + channel(step), x[step]);
  }
}

}  // namespace vidc
