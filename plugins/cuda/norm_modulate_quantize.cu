#include "dtypes.cuh"
#include "launch.h"
#include "operators.h"
#include "sm75_norm_modulate_quantize.cuh"

namespace vidc {
namespace {

const Checks kChecks("norm_modulate_quantize");

}  // namespace

void check_norm_modulate_quantize(const TensorView& x, const TensorView& shift,
                                  const TensorView& scale, DType dtype,
                                  const TensorView* output_scale) {
  kChecks.shape(x, {"B", "T", "width"});
  kChecks.dtype(x, {DType::float32, DType::bfloat16, DType::float16});
  kChecks.width(x, x.size(2));
  kChecks.frames(shift, x.size(0), x.size(1), x.size(2));
  kChecks.shape(scale, {shift.size(0), shift.size(1), shift.size(2)});
  kChecks.dtype(scale, {DType::float32});
  kChecks.output(dtype, output_scale);
  kChecks.contiguous(x);
  kChecks.rows(shift);
  kChecks.rows(scale);
  kChecks.device({&x, &shift, &scale});
  if (output_scale) kChecks.device({&x, output_scale});
}

void norm_modulate_quantize(const TensorView& x, const TensorView& shift, const TensorView& scale,
                            float eps, DType dtype, const TensorView* output_scale, void* output,
                            cudaStream_t stream) {
  NormModulateQuantize given{};
  given.x = x.data;
  given.shift = static_cast<const float*>(shift.data);
  given.scale = static_cast<const float*>(scale.data);
  given.output_scale = output_scale ? static_cast<const float*>(output_scale->data) : nullptr;
  given.output = output;
  given.shift_batch_stride = shift.stride(0);
  given.shift_frame_stride = shift.stride(1);
  given.scale_batch_stride = scale.stride(0);
  given.scale_frame_stride = scale.stride(1);
  given.tokens = static_cast<int>(x.size(1));
  given.frame_tokens = static_cast<int>(x.size(1) / shift.size(1));
  given.width = static_cast<int>(x.size(2));
  given.eps = eps;
  const dim3 grid(static_cast<unsigned>(x.size(1)), static_cast<unsigned>(x.size(0)));
  const int threads = row_threads(x.size(2));
  with_float(x.dtype, [&](auto of_x) {
    with_float_or_fp8(dtype, [&](auto of_output) {
      using X = typename decltype(of_x)::type;
      using Output = typename decltype(of_output)::type;
      const auto kernel = threads <= 256 ? norm_modulate_quantize_kernel<X, Output, 256>
                                         : norm_modulate_quantize_kernel<X, Output, kMostThreads>;
      launch(kChecks, kernel, grid, threads, stream, given);
    });
  });
}

}  // namespace vidc
