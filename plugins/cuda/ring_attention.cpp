// Checks of attention over a ring of 16 bits, and its launch.

#include "launch.h"
#include "operators.h"
#include "ring_attention_16bit.h"

namespace vidc {
namespace {

const Checks kChecks("ring_attention");
constexpr int64_t kSlots = int64_t{1} << 20;
constexpr int64_t kRows = INT32_MAX;

bool of_16_bits(DType dtype) { return dtype == DType::bfloat16 || dtype == DType::float16; }
bool of_a_kernel(int64_t head_dim) { return head_dim == 64 || head_dim == 128; }

}  // namespace

void check_ring_attention(const RingAttention& given) {
  const TensorView &query = given.query, &keys = given.key_cache, &values = given.value_cache;
  kChecks.shape(query, {"B", "T", "H", "D"});
  kChecks.shape(keys, {query.size(0), "S", query.size(2), query.size(3)});
  kChecks.shape(values, {query.size(0), keys.size(1), query.size(2), query.size(3)});
  kChecks.dtype(keys, {query.dtype});
  kChecks.dtype(values, {query.dtype});
  kChecks.shape(given.valid_length, {1});
  kChecks.dtype(given.valid_length, {DType::int64});
}

bool ring_attention_has_kernel(const RingAttention& given) {
  return of_16_bits(given.query.dtype) && of_a_kernel(given.query.size(3));
}

void check_ring_attention_kernel(const RingAttention& given) {
  const TensorView &query = given.query, &keys = given.key_cache;
  check_ring_attention(given);
  kChecks.dtype(query, {DType::bfloat16, DType::float16});
  const int64_t rows = query.size(0) * query.size(1) * query.size(2);
  kChecks.that(of_a_kernel(query.size(3)), query.name, "a head size of 64 or 128",
               std::to_string(query.size(3)));
  kChecks.that(keys.size(1) <= kSlots, keys.name, "at most " + std::to_string(kSlots) + " slots",
               std::to_string(keys.size(1)));
  kChecks.that(rows <= kRows, query.name, "at most " + std::to_string(kRows) + " rows",
               std::to_string(rows));
  for (const TensorView* tensor : {&query, &keys, &given.value_cache}) kChecks.contiguous(*tensor);
  kChecks.device({&query, &keys, &given.value_cache, &given.valid_length});
}

void ring_attention(const RingAttention& given, void* output, cudaStream_t stream) {
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
