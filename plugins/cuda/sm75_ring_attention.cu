// Host side of ring attention on any GPU: the choice and the launch of a kernel.

#include "sm75_ring_attention.cuh"

namespace {

using namespace vidc::ring_attention::portable;

template <typename Number, int kHead>
cudaError_t launch(const VidcRingAttention& a, cudaStream_t stream) {
  const int tiles = a.batch * a.heads * ((a.queries + kQueries - 1) / kQueries);
  kernel<Number, kHead><<<tiles, kThreads, 0, stream>>>(a);
  return cudaGetLastError();
}

template <typename Number>
cudaError_t dispatch(const VidcRingAttention& a, cudaStream_t stream) {
  return a.head_dim == 64 ? launch<Number, 64>(a, stream) : launch<Number, 128>(a, stream);
}

}  // namespace

cudaError_t vidc_ring_attention_portable(const VidcRingAttention* arguments, cudaStream_t stream) {
  if (arguments->head_dim != 64 && arguments->head_dim != 128) return cudaErrorInvalidValue;
  return arguments->format == VIDC_RING_E4M3 ? dispatch<E4m3>(*arguments, stream)
                                             : dispatch<Int8>(*arguments, stream);
}
