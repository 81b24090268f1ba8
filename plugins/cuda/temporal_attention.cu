#include "launch.h"
#include "operators.h"
#include "sm75_temporal_attention.cuh"

namespace vidc {
namespace {

const Checks kChecks("temporal_attention");

constexpr int64_t kMostItems = 1 << 30;
constexpr int kMostFrames = kFrameTile * kMostFrameTiles;

template <typename Element>
void run(const TemporalAttention& given, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>((given.items + kFrameWarps - 1) / kFrameWarps));
  auto* kernel = given.frames > kFrameTile ? temporal_attention_kernel<Element, kMostFrameTiles>
                                           : temporal_attention_kernel<Element, 1>;
  launch(kChecks, kernel, grid, 32 * kFrameWarps, stream, given);
}

}  // namespace

void check_temporal_attention(const TemporalAttentionArguments& given) {
  const TensorView& query = given.query;
  kChecks.shape(query, {"N", "T", "P", "H", kFrameHead});
  kChecks.that(query.size(1) <= kMostFrames, query.name,
               "at most " + std::to_string(kMostFrames) + " frames",
               std::to_string(query.size(1)));
  const int64_t items = query.size(0) * query.size(2) * query.size(3);
  kChecks.that(items <= kMostItems, query.name,
               "N P H at most " + std::to_string(kMostItems), std::to_string(items));
  kChecks.dtype(query, {DType::bfloat16, DType::float16});
  for (const TensorView* tensor : {&given.key, &given.value}) {
    kChecks.like(*tensor, query);
    kChecks.dtype(*tensor, {query.dtype});
  }
  for (const TensorView* tensor : {&query, &given.key, &given.value}) kChecks.contiguous(*tensor);
  kChecks.device({&query, &given.key, &given.value});
}

void temporal_attention(const TemporalAttentionArguments& given, void* output,
                        cudaStream_t stream) {
  const TensorView& query = given.query;
  TemporalAttention to{};
  to.query = query.data;
  to.key = given.key.data;
  to.value = given.value.data;
  to.output = output;
  to.frames = static_cast<int>(query.size(1));
  to.per_frame = static_cast<uint32_t>(query.size(2) * query.size(3));
  to.items = static_cast<uint32_t>(query.size(0)) * to.per_frame;
  if (query.dtype == DType::bfloat16)
    run<ring_attention::Bfloat16>(to, stream);
  else
    run<ring_attention::Float16>(to, stream);
}

}  // namespace vidc
