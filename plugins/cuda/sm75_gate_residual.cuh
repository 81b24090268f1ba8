// x + gate * update, with one gate for each latent frame. A block has a token, a thread 8 channels.
#pragma once

#include "sm75_vector.cuh"

namespace vidc {

struct GateResidual {
  const void* x;       // [batch, tokens, width], also the output's dtype
  const void* update;  // [batch, tokens, width]
  const float* gate;   // rows of [batch, frames, width]
  void* output;
  int64_t gate_batch_stride;
  int64_t gate_frame_stride;
  int tokens;
  int frame_tokens;
  int width;
};

template <typename X, typename Update>
__global__ void gate_residual_kernel(const GateResidual given) {
  const int channel = threadIdx.x * kVector;
  if (channel >= given.width) return;
  const int token = blockIdx.x, batch = blockIdx.y;
  const int64_t at = (static_cast<int64_t>(batch) * given.tokens + token) * given.width + channel;
  const auto raw_x = load_once(static_cast<const X*>(given.x) + at);
  const auto raw_update = load_once(static_cast<const Update*>(given.update) + at);
  const auto raw_gate = load_shared(given.gate + batch * given.gate_batch_stride +
                                    token / given.frame_tokens * given.gate_frame_stride + channel);
  float x[kVector], update[kVector], gate[kVector];
  unpack(raw_x, x);
  unpack(raw_update, update);
  unpack(raw_gate, gate);
#pragma unroll
  for (int i = 0; i < kVector; ++i) x[i] += update[i] * gate[i];
  store(static_cast<X*>(given.output) + at, x);
}

}  // namespace vidc
