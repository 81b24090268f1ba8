// Checks of attention over an 8-bit ring, and the choice of its kernel: sm_90 or portable.

#include <algorithm>

#include "launch.h"
#include "operators.h"
#include "ring_attention.h"

namespace vidc {
namespace {

const Checks kChecks("ring_attention_8bit");
constexpr int64_t kGroup = 16;
constexpr int64_t kSlots = int64_t{1} << 20;
constexpr int64_t kRows = (int64_t{1} << 31) - 128;  // Tile indices have 32 bits.

constexpr int kHopper = 9;
#ifdef VIDC_SM90
// Multiprocessors of a full GH100. Workspaces are sized for it: TensorRT stores the size in a plan,
// which may run on a Hopper with more multiprocessors than the one it was built on.
constexpr int kMostBlocks = 144;
#endif

int of_device(cudaDeviceAttr attribute, int device) {
  int value = 0;
  check_launch(kChecks, cudaDeviceGetAttribute(&value, attribute, device));
  return value;
}

VidcRingAttention arguments(const RingAttention8Bit& given, DType dtype) {
  const TensorView& query = given.query;
  const auto floats = [](const TensorView& tensor) { return static_cast<const float*>(tensor.data); };
  VidcRingAttention a{};
  a.query = query.data;
  a.query_scale = floats(given.query_scale);
  a.key = given.key_cache.data;
  a.key_scale = floats(given.key_scale);
  a.value = given.value_cache.data;
  a.value_scale = floats(given.value_scale);
  a.value_mean = floats(given.value_mean);
  a.valid_length = static_cast<const int64_t*>(given.valid_length.data);
  a.output_scale = given.output_scale ? floats(*given.output_scale) : nullptr;
  a.batch = static_cast<int32_t>(query.size(0));
  a.queries = static_cast<int32_t>(query.size(1));
  a.slots = static_cast<int32_t>(given.key_cache.size(1));
  a.value_slots = static_cast<int32_t>(given.value_cache.size(3));
  a.heads = static_cast<int32_t>(query.size(2));
  a.head_dim = static_cast<int32_t>(query.size(3));
  a.format = query.dtype == DType::int8 ? VIDC_RING_INT8 : VIDC_RING_E4M3;
  a.output_type = dtype == DType::bfloat16  ? VIDC_BF16
                  : dtype == DType::float16 ? VIDC_FP16
                                            : VIDC_E4M3;
  return a;
}

}  // namespace

void check_ring_attention_8bit_dtype(DType dtype) {
  kChecks.that(
      dtype == DType::bfloat16 || dtype == DType::float16 || dtype == DType::float8_e4m3fn, "dtype",
      "bfloat16 or float16 or float8_e4m3fn", text(dtype));
}

void check_ring_attention_8bit(const RingAttention8Bit& given, DType dtype) {
  const TensorView &query = given.query, &keys = given.key_cache, &values = given.value_cache;
  kChecks.shape(query, {"B", "T", "H", "D"});
  kChecks.dtype(query, {DType::float8_e4m3fn, DType::int8});
  const int64_t batch = query.size(0), tokens = query.size(1), heads = query.size(2);
  const int64_t head_dim = query.size(3);
  kChecks.that(head_dim == 64 || head_dim == 128, query.name, "a head size of 64 or 128",
               std::to_string(head_dim));
  kChecks.shape(keys, {batch, "S", heads, head_dim});
  kChecks.dtype(keys, {query.dtype});
  const int64_t slots = keys.size(1);
  kChecks.that(slots <= kSlots, keys.name, "at most " + std::to_string(kSlots) + " slots",
               std::to_string(slots));
  kChecks.shape(values, {batch, heads, head_dim, "S'"});
  kChecks.dtype(values, {query.dtype});
  const int64_t stored = values.size(3);
  kChecks.that(stored % kGroup == 0 && stored >= slots && stored <= kSlots, values.name,
               "a number of slots that is a multiple of 16, from " + std::to_string(slots) + " to " +
                   std::to_string(kSlots),
               std::to_string(stored));
  kChecks.that(batch * tokens * heads <= kRows, query.name,
               "at most " + std::to_string(kRows) + " rows",
               std::to_string(batch * tokens * heads));
  kChecks.shape(given.query_scale, {batch, heads, tokens});
  kChecks.dtype(given.query_scale, {DType::float32});
  kChecks.shape(given.key_scale, {heads});
  kChecks.shape(given.value_scale, {heads, head_dim});
  kChecks.shape(given.value_mean, {heads, head_dim});
  for (const TensorView* tensor : {&given.key_scale, &given.value_scale, &given.value_mean})
    kChecks.dtype(*tensor, {DType::float32});
  kChecks.shape(given.valid_length, {1});
  kChecks.dtype(given.valid_length, {DType::int64});
  check_ring_attention_8bit_dtype(dtype);
  kChecks.output(dtype, given.output_scale);
  for (const TensorView* tensor : {&query, &given.query_scale, &keys, &values, &given.key_scale,
                                   &given.value_scale, &given.value_mean})
    kChecks.contiguous(*tensor);
  kChecks.device({&query, &given.query_scale, &keys, &values, &given.key_scale, &given.value_scale,
                  &given.value_mean, &given.valid_length});
  if (given.output_scale) kChecks.device({&query, given.output_scale});
}

int64_t ring_attention_8bit_workspace(const RingAttention8Bit& given, DType dtype) {
#ifdef VIDC_SM90
  VidcRingAttention a = arguments(given, dtype);
  a.ctas = kMostBlocks;
  return static_cast<int64_t>(vidc_ring_attention_workspace(&a));
#else
  (void)given, (void)dtype;
  return 0;
#endif
}

void ring_attention_8bit(const RingAttention8Bit& given, DType dtype, void* workspace, void* output,
                         cudaStream_t stream) {
  VidcRingAttention a = arguments(given, dtype);
  a.output = output;
  const int device = given.query.device;
  if (of_device(cudaDevAttrComputeCapabilityMajor, device) == kHopper) {
#ifdef VIDC_SM90
    kChecks.that(workspace != nullptr, "workspace", "memory of the requested size", "none");
    a.ctas = std::min(kMostBlocks, of_device(cudaDevAttrMultiProcessorCount, device));
    a.workspace = workspace;
    const size_t zeroed = vidc_ring_attention_zeroed(&a);
    check_launch(kChecks, cudaMemsetAsync(workspace, 0, zeroed, stream));
    check_launch(kChecks, vidc_ring_attention(&a, stream));
    return;
#else
    // Refused: the portable kernel would take several times as long.
    (void)workspace;
    check_launch(kChecks, cudaErrorNoKernelImageForDevice);
#endif
  }
  check_launch(kChecks, vidc_ring_attention_portable(&a, stream));
}

}  // namespace vidc
