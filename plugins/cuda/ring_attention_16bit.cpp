// Checks and launch of attention over a 16-bit ring.

#include "launch.h"
#include "operators.h"
#include "ring_attention_16bit.h"

namespace vidc {
namespace {

const Checks kChecks("ring_attention_16bit");
constexpr int64_t kSlots = int64_t{1} << 20;
constexpr int64_t kRows = (int64_t{1} << 31) - 128;  // Tile indices have 32 bits.

}  // namespace

void check_ring_attention_16bit(const RingAttention16Bit& given) {
  const TensorView &query = given.query, &keys = given.key_cache, &values = given.value_cache;
  kChecks.shape(query, {"B", "T", "H", "D"});
  kChecks.dtype(query, {DType::bfloat16, DType::float16});
  const int64_t head_dim = query.size(3);
  kChecks.that(head_dim == 64 || head_dim == 128, query.name, "a head size of 64 or 128",
               std::to_string(head_dim));
  kChecks.shape(keys, {query.size(0), "S", query.size(2), head_dim});
  kChecks.that(keys.size(1) <= kSlots, keys.name, "at most " + std::to_string(kSlots) + " slots",
               std::to_string(keys.size(1)));
  kChecks.shape(values, {query.size(0), keys.size(1), query.size(2), head_dim});
  kChecks.dtype(keys, {query.dtype});
  kChecks.dtype(values, {query.dtype});
  const int64_t rows = query.size(0) * query.size(1) * query.size(2);
  kChecks.that(rows <= kRows, query.name, "at most " + std::to_string(kRows) + " rows",
               std::to_string(rows));
  kChecks.shape(given.valid_length, {1});
  kChecks.dtype(given.valid_length, {DType::int64});
  for (const TensorView* tensor : {&query, &keys, &values}) kChecks.contiguous(*tensor);
  kChecks.device({&query, &keys, &values, &given.valid_length});
}

void ring_attention_16bit(const RingAttention16Bit& given, void* output, cudaStream_t stream) {
  const TensorView& query = given.query;
  VidcRingAttention16Bit a{};
  a.query = query.data;
  a.key = given.key_cache.data;
  a.value = given.value_cache.data;
  a.valid_length = static_cast<const int64_t*>(given.valid_length.data);
  a.output = output;
  a.batch = static_cast<int32_t>(query.size(0));
  a.queries = static_cast<int32_t>(query.size(1));
  a.slots = static_cast<int32_t>(given.key_cache.size(1));
  a.heads = static_cast<int32_t>(query.size(2));
  a.head_dim = static_cast<int32_t>(query.size(3));
  a.type = query.dtype == DType::bfloat16 ? VIDC_FLOAT_BF16 : VIDC_FLOAT_FP16;
  check_launch(kChecks, vidc_ring_attention_16bit(&a, stream));
}

}  // namespace vidc
