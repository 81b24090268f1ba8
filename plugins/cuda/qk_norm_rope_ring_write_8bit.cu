#include "dtypes.cuh"
#include "launch.h"
#include "operators.h"
#include "qkv.h"
#include "sm75_qk_norm_rope_ring_write_8bit.cuh"
#include "sm75_value_transpose.cuh"

namespace vidc {
namespace {

const Checks kChecks("qk_norm_rope_ring_write_static");

template <typename Body>
void with_head_dim(int64_t head_dim, Body&& body) {
  if (head_dim == 32) return body(std::integral_constant<int, 32>{});
  if (head_dim == 64) return body(std::integral_constant<int, 64>{});
  return body(std::integral_constant<int, 128>{});
}

void write_tokens(const QkvTo8BitRing& given, void* query, void* query_scale,
                  cudaStream_t stream) {
  QkNormRopeRingWrite8Bit kernel{};
  kernel.qk = qk_norm_rope(given.qkv);
  kernel.query = query;
  kernel.query_scale = given.quantize_query ? static_cast<float*>(query_scale) : nullptr;
  kernel.key_cache = given.qkv.key_cache.data;
  kernel.value_cache = given.value_transposed ? nullptr : given.qkv.value_cache.data;
  kernel.key_scale = static_cast<const float*>(given.key_scale.data);
  kernel.value_scale = static_cast<const float*>(given.value_scale.data);
  kernel.key_mean = given.key_mean ? static_cast<const float*>(given.key_mean->data) : nullptr;
  with_half(given.qkv.qkv.dtype, [&](auto of_qkv) {
    with_eight_bits(given.qkv.key_cache.dtype, [&](auto of_ring) {
      launch(kChecks,
             qk_norm_rope_ring_write_8bit_kernel<typename decltype(of_qkv)::type,
                                                 typename decltype(of_ring)::type>,
             token_grid(given.qkv), row_threads(kernel.qk.width), stream, kernel);
    });
  });
}

void transpose_values(const QkvTo8BitRing& given, cudaStream_t stream) {
  const TensorView& qkv = given.qkv.qkv;
  const QkNormRope qk = qk_norm_rope(given.qkv);
  ValueTranspose kernel{};
  kernel.cache = given.qkv.value_cache.data;
  kernel.scale = static_cast<const float*>(given.value_scale.data);
  kernel.ring = qk.ring;
  kernel.value_slots = static_cast<int>(given.qkv.value_cache.size(3));
  kernel.tokens = qk.tokens;
  kernel.heads = qk.width / qk.head_dim;
  const dim3 grid(static_cast<unsigned>(transpose_tiles(qk.tokens)),
                  static_cast<unsigned>(kernel.heads), static_cast<unsigned>(qkv.size(0)));
  with_half(qkv.dtype, [&](auto of_qkv) {
    using T = typename decltype(of_qkv)::type;
    kernel.values = static_cast<const T*>(qkv.data) + 2 * qk.width;
    with_eight_bits(given.qkv.value_cache.dtype, [&](auto of_ring) {
      with_head_dim(qk.head_dim, [&](auto head_dim) {
        launch(kChecks,
               value_transpose_kernel<T, typename decltype(of_ring)::type,
                                      decltype(head_dim)::value>,
               grid, kTransposeThreads, stream, kernel);
      });
    });
  });
}

}  // namespace

void check_qk_norm_rope_ring_write_8bit(const QkvTo8BitRing& given) {
  const TensorView &keys = given.qkv.key_cache, &values = given.qkv.value_cache;
  kChecks.dtype(given.qkv.qkv, {DType::bfloat16, DType::float16});
  kChecks.shape(keys, {"B", "S", "H", "D"});
  kChecks.dtype(keys, {DType::float8_e4m3fn, DType::int8});
  const int64_t batch = keys.size(0), slots = keys.size(1), heads = keys.size(2);
  const int64_t head_dim = keys.size(3);
  check_qkv(kChecks, given.qkv, slots, heads, head_dim);
  if (given.value_transposed) {
    kChecks.shape(values, {batch, heads, head_dim, "S'"});
    const int64_t stored = values.size(3);
    kChecks.that(stored % kGroup == 0 && stored >= slots, values.name,
                 "a number of slots that is a multiple of 16, at least " + std::to_string(slots),
                 std::to_string(stored));
  } else {
    kChecks.like(values, keys);
  }
  kChecks.dtype(values, {keys.dtype});
  for (const TensorView* scale : {&given.key_scale, &given.value_scale}) {
    kChecks.shape(*scale, {heads});
    kChecks.dtype(*scale, {DType::float32});
  }
  if (given.key_mean) {
    kChecks.shape(*given.key_mean, {heads, head_dim});
    kChecks.dtype(*given.key_mean, {DType::float32});
    kChecks.contiguous(*given.key_mean);
  }
  check_qkv_memory(kChecks, given.qkv);
  kChecks.contiguous(given.key_scale);
  kChecks.contiguous(given.value_scale);
  check_qkv_device(kChecks, given.qkv);
  kChecks.device({&given.qkv.qkv, &given.key_scale, &given.value_scale});
  if (given.key_mean) kChecks.device({&given.qkv.qkv, given.key_mean});
}

void qk_norm_rope_ring_write_8bit(const QkvTo8BitRing& given, void* query, void* query_scale,
                                  cudaStream_t stream) {
  write_tokens(given, query, query_scale, stream);
  if (given.value_transposed) transpose_values(given, stream);
}

}  // namespace vidc
