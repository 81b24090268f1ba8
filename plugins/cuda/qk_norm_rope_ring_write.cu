#include "dtypes.cuh"
#include "launch.h"
#include "operators.h"
#include "qkv.h"
#include "sm75_qk_norm_rope_ring_write.cuh"

namespace vidc {
namespace {

const Checks kChecks("qk_norm_rope_ring_write");

}  // namespace

void check_qk_norm_rope_ring_write(const QkvToRing& given) {
  const TensorView& cache = given.key_cache;
  kChecks.dtype(given.qkv, {DType::bfloat16, DType::float16, DType::float32});
  kChecks.shape(cache, {"B", "S", "H", "D"});
  check_qkv(kChecks, given, cache.size(1), cache.size(2), cache.size(3));
  kChecks.like(given.value_cache, cache);
  for (const TensorView* tensor : {&cache, &given.value_cache})
    kChecks.dtype(*tensor, {given.qkv.dtype});
  check_qkv_memory(kChecks, given);
  check_qkv_device(kChecks, given);
}

void qk_norm_rope_ring_write(const QkvToRing& given, void* query, cudaStream_t stream) {
  QkNormRopeRingWrite kernel{};
  kernel.qk = qk_norm_rope(given);
  kernel.query = query;
  kernel.key_cache = given.key_cache.data;
  kernel.value_cache = given.value_cache.data;
  with_float(given.qkv.dtype, [&](auto of_qkv) {
    launch(kChecks, qk_norm_rope_ring_write_kernel<typename decltype(of_qkv)::type>,
           token_grid(given), row_threads(kernel.qk.width), stream, kernel);
  });
}

}  // namespace vidc
