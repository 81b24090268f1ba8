// The portable kernel of ring attention on a CPU, one block after another.

#include "cuda_runtime_api.h"

// Blocks run one after another, so that what threads share may be static.
#undef __shared__
#define __shared__ static

#include "sm75_ring_attention.cuh"

namespace {

using namespace vidc::ring_attention::portable;

template <typename Number, int kHead>
int run(const VidcRingAttention& a) {
  const unsigned tiles = a.batch * a.heads * ((a.queries + kQueries - 1) / kQueries);
  for (blockIdx.x = 0; blockIdx.x < tiles; ++blockIdx.x)
    if (!fibers::run(kThreads, [&] { kernel<Number, kHead>(a); })) return 1;
  return 0;
}

template <typename Number>
int run(const VidcRingAttention& a) {
  return a.head_dim == 64 ? run<Number, 64>(a) : run<Number, 128>(a);
}

}  // namespace

extern "C" int simulate(const VidcRingAttention* arguments) {
  fibers::when_idle = [] { return false; };
  return arguments->format == VIDC_RING_E4M3 ? run<E4m3>(*arguments) : run<Int8>(*arguments);
}
