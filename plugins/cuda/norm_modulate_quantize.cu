#include "dtypes.cuh"
#include "launch.h"
#include "operators.h"
#include "sm75_norm_modulate_quantize.cuh"

namespace vidc {
namespace {

const Checks kChecks("norm_modulate_quantize");
static_assert(kWidest <= kNormBlockWarps * kNormWarpWidth, "the kernel's bound on a block");

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
  given.tokens = static_cast<int>(x.size(0) * x.size(1));
  given.frames = static_cast<int>(shift.size(1));
  given.frame_tokens = static_cast<int>(x.size(1) / shift.size(1));
  given.width = static_cast<int>(x.size(2));
  given.eps = eps;
  with_float(x.dtype, [&](auto of_x) {
    with_float_or_fp8(dtype, [&](auto of_output) {
      using X = typename decltype(of_x)::type;
      using Output = typename decltype(of_output)::type;
      if (given.width == kNormWarpWidth) {
        const int blocks = (given.tokens + kNormBlockWarps - 1) / kNormBlockWarps;
        launch(kChecks, norm_modulate_quantize_kernel<X, Output, true>, dim3(blocks),
               32 * kNormBlockWarps, stream, given);
      } else {
        const int warps = (given.width + kNormWarpWidth - 1) / kNormWarpWidth;
        launch(kChecks, norm_modulate_quantize_kernel<X, Output, false>, dim3(given.tokens),
               32 * warps, stream, given);
      }
    });
  });
}

}  // namespace vidc
