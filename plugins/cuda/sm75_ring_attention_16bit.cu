// Host side of attention over a 16-bit ring: the choice and the launch of a kernel.

#include "sm75_ring_attention_16bit.cuh"

namespace {

using namespace vidc::ring_attention::of_16_bits;

template <typename Element, int kHead>
cudaError_t launch(const VidcRingAttention16Bit& a, cudaStream_t stream) {
  const int tiles = a.batch * a.heads * ((a.queries + kQueries - 1) / kQueries);
  kernel<Element, kHead><<<tiles, kThreads, 0, stream>>>(a);
  return cudaGetLastError();
}

template <typename Element>
cudaError_t dispatch(const VidcRingAttention16Bit& a, cudaStream_t stream) {
  return a.head_dim == 64 ? launch<Element, 64>(a, stream) : launch<Element, 128>(a, stream);
}

}  // namespace

cudaError_t vidc_ring_attention_16bit(const VidcRingAttention16Bit* arguments, cudaStream_t stream) {
  if (arguments->head_dim != 64 && arguments->head_dim != 128) return cudaErrorInvalidValue;
  return arguments->type == VIDC_FLOAT_BF16 ? dispatch<Bfloat16>(*arguments, stream)
                                            : dispatch<Float16>(*arguments, stream);
}
