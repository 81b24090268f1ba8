#include "dtypes.cuh"
#include "launch.h"
#include "operators.h"
#include "sm75_gelu_quantize.cuh"

namespace vidc {
namespace {

const Checks kChecks("gelu_quantize");

}  // namespace

void check_gelu_quantize(const TensorView& x, DType dtype, const TensorView* output_scale,
                         const TensorView* output_mean) {
  kChecks.shape(x, {"B", "T", "width"});
  kChecks.dtype(x, {DType::float32, DType::bfloat16, DType::float16});
  kChecks.that(x.size(2) % kVector == 0, x.name, "a width that is a multiple of 8",
               std::to_string(x.size(2)));
  kChecks.output(dtype, output_scale);
  if (output_mean) {
    kChecks.that(output_scale != nullptr, output_mean->name, "none for " + text(dtype), "a tensor");
    kChecks.shape(*output_mean, {x.size(2)});
    kChecks.dtype(*output_mean, {DType::float32});
    kChecks.contiguous(*output_mean);
  }
  kChecks.contiguous(x);
  kChecks.device({&x});
  if (output_scale) kChecks.device({&x, output_scale});
  if (output_mean) kChecks.device({&x, output_mean});
}

void gelu_quantize(const TensorView& x, DType dtype, const TensorView* output_scale,
                   const TensorView* output_mean, void* output, cudaStream_t stream) {
  GeluQuantize given{};
  given.x = x.data;
  given.output_scale = output_scale ? static_cast<const float*>(output_scale->data) : nullptr;
  given.output_mean = output_mean ? static_cast<const float*>(output_mean->data) : nullptr;
  given.output = output;
  given.rows = static_cast<uint32_t>(x.size(0) * x.size(1));
  given.row = static_cast<uint32_t>(x.size(2) / kVector);
  const int64_t threads =
      (given.rows + kGeluRows - 1) / kGeluRows * static_cast<int64_t>(given.row);
  const dim3 grid(static_cast<unsigned>((threads + kGeluThreads - 1) / kGeluThreads));
  with_float(x.dtype, [&](auto of_x) {
    with_float_or_fp8(dtype, [&](auto of_output) {
      launch(
          kChecks,
          gelu_quantize_kernel<typename decltype(of_x)::type, typename decltype(of_output)::type>,
          grid, kGeluThreads, stream, given);
    });
  });
}

}  // namespace vidc
