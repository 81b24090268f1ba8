#include <algorithm>

#include "dtypes.cuh"
#include "launch.h"
#include "operators.h"
#include "sm75_group_norm_silu.cuh"

namespace vidc {
namespace {

const Checks kChecks("group_norm_silu");

constexpr int64_t kMostChannels = kNormThreads * kVector, kMostImages = 65535;
constexpr int64_t kThreads = 256;  // approximate threads of a block
constexpr int64_t kBlocks = 1024;  // blocks of a launch: several for each multiprocessor

int64_t rows_of(int64_t channels) { return std::max<int64_t>(1, kThreads / (channels / kVector)); }

// Returns the pixels of a chunk: enough chunks for all multiprocessors, and enough work in each.
int64_t chunk_of(const TensorView& x) {
  const int64_t images = x.size(0), pixels = x.size(1);
  const int64_t least = rows_of(x.size(2)) * kNormAhead;
  const int64_t chunks = std::max<int64_t>(1, (kBlocks + images - 1) / images);
  return std::max(least, (pixels + chunks - 1) / chunks);
}

int64_t chunks_of(const TensorView& x) {
  const int64_t chunk = chunk_of(x);
  return (x.size(1) + chunk - 1) / chunk;
}

}  // namespace

void check_group_norm_silu(const GroupNormSiluArguments& given) {
  const TensorView& x = given.x;
  kChecks.shape(x, {"N", "P", "C"});
  const int64_t channels = x.size(2);
  kChecks.that(x.size(0) <= kMostImages, x.name,
               "at most " + std::to_string(kMostImages) + " images", std::to_string(x.size(0)));
  kChecks.that(channels % kVector == 0 && channels <= kMostChannels, x.name,
               "C a multiple of 8, at most " + std::to_string(kMostChannels),
               std::to_string(channels));
  kChecks.that(given.groups > 0 && given.groups <= kMostGroups && channels % given.groups == 0,
               "groups",
               "a divisor of " + std::to_string(channels) + ", at most " +
                   std::to_string(kMostGroups),
               std::to_string(given.groups));
  kChecks.dtype(x, {DType::bfloat16, DType::float16});
  for (const TensorView* tensor : {&given.weight, &given.bias}) {
    kChecks.shape(*tensor, {channels});
    kChecks.dtype(*tensor, {x.dtype});
  }
  std::vector<const TensorView*> tensors{&x, &given.weight, &given.bias};
  if (given.shift) {
    kChecks.shape(*given.shift, {channels});
    kChecks.dtype(*given.shift, {DType::float32});
    tensors.push_back(given.shift);
  }
  for (const TensorView* tensor : tensors) kChecks.contiguous(*tensor);
  for (const TensorView* tensor : tensors) kChecks.device({&x, tensor});
}

int64_t group_norm_silu_workspace(const GroupNormSiluArguments& given) {
  const int64_t sums = given.x.size(0) * chunks_of(given.x) * given.groups;
  return (sums + given.x.size(0) * given.x.size(2)) * static_cast<int64_t>(sizeof(float2));
}

void group_norm_silu(const GroupNormSiluArguments& given, void* workspace, void* output,
                     cudaStream_t stream) {
  const TensorView& x = given.x;
  const int64_t images = x.size(0), channels = x.size(2);
  GroupNormSilu to{};
  to.x = x.data;
  to.shift = given.shift ? static_cast<const float*>(given.shift->data) : nullptr;
  to.weight = given.weight.data;
  to.bias = given.bias.data;
  to.output = output;
  to.pixels = x.size(1);
  to.chunk = chunk_of(x);
  to.channels = static_cast<int>(channels);
  to.groups = static_cast<int>(given.groups);
  to.chunks = static_cast<int>(chunks_of(x));
  to.eps = given.eps;
  to.coefficients = static_cast<float2*>(workspace);
  to.sums = to.coefficients + images * channels;
  const dim3 grid(static_cast<unsigned>(to.chunks), static_cast<unsigned>(images));
  const int threads = static_cast<int>(rows_of(channels) * (channels / kVector));
  with_half(x.dtype, [&](auto of_x) {
    using T = typename decltype(of_x)::type;
    launch(kChecks, group_sums_kernel<T>, grid, threads, stream, to);
    launch(kChecks, group_coefficients_kernel<T>, dim3(static_cast<unsigned>(images)),
           kGroupThreads, stream, to);
    launch(kChecks, given.silu ? group_apply_kernel<T, true> : group_apply_kernel<T, false>, grid,
           threads, stream, to);
  });
}

}  // namespace vidc
