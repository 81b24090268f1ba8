// The kernel of attention over a ring of 16 bits on a CPU, one block after another.

#include "cuda_runtime_api.h"

// Blocks run one after another, so that what threads share may be static.
#undef __shared__
#define __shared__ static

#include "sm75_ring_attention_16bit.cuh"

namespace {

using namespace vidc::ring_attention::of_16_bits;

template <typename Element, int kHead>
int run(const VidcRingAttention16Bit& a) {
  const unsigned tiles = a.batch * a.heads * ((a.queries + kQueries - 1) / kQueries);
  for (blockIdx.x = 0; blockIdx.x < tiles; ++blockIdx.x) {
    vidc::copy::forget();
    if (!fibers::run(kThreads, [&] { kernel<Element, kHead>(a); })) return 1;
  }
  return 0;
}

template <typename Element>
int run(const VidcRingAttention16Bit& a) {
  return a.head_dim == 64 ? run<Element, 64>(a) : run<Element, 128>(a);
}

}  // namespace

extern "C" int simulate(const VidcRingAttention16Bit* arguments) {
  fibers::when_idle = [] { return false; };
  return arguments->type == VIDC_FLOAT_BF16 ? run<Bfloat16>(*arguments) : run<Float16>(*arguments);
}
