// x + gate * update, with one gate for each latent frame. A thread has 4 elements at a time, twice.
#pragma once

#include "sm75_vector.cuh"

namespace vidc {

struct GateResidual {
  const void* x;       // [tokens, width], those of all the batch; also the output's dtype
  const void* update;  // the same
  const float* gate;   // rows of [batch, frames, width]
  void* output;
  int64_t gate_batch_stride;
  int64_t gate_frame_stride;
  uint32_t quads;
  uint32_t row;  // quads of one
  uint32_t frame_tokens;
  uint32_t frames;  // of an element of the batch
};

constexpr int kGateThreads = 256;
constexpr int kGateSteps = 2;  // of a thread, so that more loads are under way

template <typename X, typename Update>
__global__ void __launch_bounds__(kGateThreads) gate_residual_kernel(const GateResidual given) {
  const uint32_t first = blockIdx.x * kGateThreads * kGateSteps + threadIdx.x;
  Raw<X, kQuad> raw_x[kGateSteps];
  Raw<Update, kQuad> raw_update[kGateSteps];
#pragma unroll
  for (int step = 0; step < kGateSteps; ++step) {
    const int64_t quad = first + step * kGateThreads;
    if (quad >= given.quads) continue;
    raw_x[step] = load_once<kQuad>(static_cast<const X*>(given.x) + quad * kQuad);
    raw_update[step] = load_once<kQuad>(static_cast<const Update*>(given.update) + quad * kQuad);
  }
#pragma unroll
  for (int step = 0; step < kGateSteps; ++step) {
    const uint32_t quad = first + step * kGateThreads;
    if (quad >= given.quads) return;
    const uint32_t token = quad / given.row, frame = token / given.frame_tokens;
    const uint32_t batch = frame / given.frames;
    float x[kQuad], update[kQuad], gate[kQuad];
    unpack(load_shared<kQuad>(given.gate + batch * given.gate_batch_stride +
                              (frame - batch * given.frames) * given.gate_frame_stride +
                              (quad - token * given.row) * kQuad),
           gate);
    unpack(raw_x[step], x);
    unpack(raw_update[step], update);
#pragma unroll
    for (int i = 0; i < kQuad; ++i) x[i] += update[i] * gate[i];
    store(static_cast<X*>(given.output) + static_cast<int64_t>(quad) * kQuad, x);
  }
}

}  // namespace vidc
