#include "dtypes.cuh"
#include "launch.h"
#include "operators.h"
#include "qkv.h"
#include "sm75_qk_norm_rope_ring_write_8bit.cuh"

namespace vidc {
namespace {

const Checks kChecks("qk_norm_rope_ring_write_static");

// The body's argument is the head size, or 0 if values are not transposed.
template <typename Body>
void with_transposed_head(bool transposed, int64_t head_dim, Body&& body) {
  if (!transposed) return body(std::integral_constant<int, 0>{});
  if (head_dim == 32) return body(std::integral_constant<int, 32>{});
  if (head_dim == 64) return body(std::integral_constant<int, 64>{});
  return body(std::integral_constant<int, 128>{});
}

// Returns the transposition without the values, whose dtype the caller knows.
ValueTranspose value_transpose(const QkvTo8BitRing& given, const QkNormRope& qk) {
  ValueTranspose values{};
  values.cache = given.qkv.value_cache.data;
  values.scale = static_cast<const float*>(given.value_scale.data);
  values.ring = qk.ring;
  values.value_slots = static_cast<int>(given.qkv.value_cache.size(3));
  values.tokens = qk.tokens;
  values.heads = qk.width / qk.head_dim;
  values.tiles = transpose_tiles(qk.tokens);
  return values;
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
  QkNormRopeRingWrite8Bit kernel{};
  kernel.qk = qk_norm_rope(given.qkv);
  kernel.query = query;
  kernel.query_scale = given.quantize_query ? static_cast<float*>(query_scale) : nullptr;
  kernel.key_cache = given.qkv.key_cache.data;
  kernel.value_cache = given.value_transposed ? nullptr : given.qkv.value_cache.data;
  kernel.key_scale = static_cast<const float*>(given.key_scale.data);
  kernel.value_scale = static_cast<const float*>(given.value_scale.data);
  kernel.key_mean = given.key_mean ? static_cast<const float*>(given.key_mean->data) : nullptr;
  if (given.value_transposed) kernel.values = value_transpose(given, kernel.qk);
  dim3 grid = token_grid(given.qkv);
  grid.x += static_cast<unsigned>(kernel.values.tiles * kernel.values.heads);
  with_half(given.qkv.qkv.dtype, [&](auto of_qkv) {
    using T = typename decltype(of_qkv)::type;
    if (given.value_transposed)
      kernel.values.values = static_cast<const T*>(given.qkv.qkv.data) + 2 * kernel.qk.width;
    with_eight_bits(given.qkv.key_cache.dtype, [&](auto of_ring) {
      using Output = typename decltype(of_ring)::type;
      with_transposed_head(given.value_transposed, kernel.qk.head_dim, [&](auto head_dim) {
        launch(kChecks,
               qk_norm_rope_ring_write_8bit_kernel<T, Output, decltype(head_dim)::value>, grid,
               row_threads(kernel.qk.width), stream, kernel);
      });
    });
  });
}

}  // namespace vidc
