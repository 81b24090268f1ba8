#include "dtypes.cuh"
#include "launch.h"
#include "operators.h"
#include "sm75_gelu_quantize.cuh"

namespace vidc {
namespace {

const Checks kChecks("gelu_quantize");
constexpr int kEach = kGeluThreads * kGeluSteps;

}  // namespace

void check_gelu_quantize(const TensorView& x, DType dtype, const TensorView* output_scale) {
  kChecks.shape(x, {"B", "T", "width"});
  kChecks.dtype(x, {DType::float32, DType::bfloat16, DType::float16});
  kChecks.that(x.size(2) % kVector == 0, x.name, "a width that is a multiple of 8",
               std::to_string(x.size(2)));
  kChecks.output(dtype, output_scale);
  kChecks.contiguous(x);
  kChecks.device({&x});
  if (output_scale) kChecks.device({&x, output_scale});
}

void gelu_quantize(const TensorView& x, DType dtype, const TensorView* output_scale, void* output,
                   cudaStream_t stream) {
  GeluQuantize given{};
  given.x = x.data;
  given.output_scale = output_scale ? static_cast<const float*>(output_scale->data) : nullptr;
  given.output = output;
  given.vectors = x.elements() / kVector;
  const dim3 grid(static_cast<unsigned>((given.vectors + kEach - 1) / kEach));
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
