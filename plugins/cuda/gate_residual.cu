#include "dtypes.cuh"
#include "launch.h"
#include "operators.h"
#include "sm75_gate_residual.cuh"

namespace vidc {
namespace {

const Checks kChecks("gate_residual");
constexpr uint32_t kEach = kGateThreads * kGateSteps;

}  // namespace

void check_gate_residual(const TensorView& x, const TensorView& update, const TensorView& gate) {
  kChecks.shape(x, {"B", "T", "width"});
  kChecks.dtype(x, {DType::float32, DType::bfloat16, DType::float16});
  kChecks.width(x, x.size(2));
  kChecks.shape(update, {x.size(0), x.size(1), x.size(2)});
  kChecks.dtype(update, {DType::float32, DType::bfloat16, DType::float16});
  kChecks.frames(gate, x.size(0), x.size(1), x.size(2));
  kChecks.contiguous(x);
  kChecks.contiguous(update);
  kChecks.rows(gate);
  kChecks.device({&x, &update, &gate});
}

void gate_residual(const TensorView& x, const TensorView& update, const TensorView& gate,
                   void* output, cudaStream_t stream) {
  GateResidual given{};
  given.x = x.data;
  given.update = update.data;
  given.gate = static_cast<const float*>(gate.data);
  given.output = output;
  given.gate_batch_stride = gate.stride(0);
  given.gate_frame_stride = gate.stride(1);
  given.quads = static_cast<uint32_t>(x.elements() / kQuad);
  given.row = static_cast<uint32_t>(x.size(2) / kQuad);
  given.frame_tokens = static_cast<uint32_t>(x.size(1) / gate.size(1));
  given.frames = static_cast<uint32_t>(gate.size(1));
  const dim3 grid((given.quads + kEach - 1) / kEach);
  with_float(x.dtype, [&](auto of_x) {
    with_float(update.dtype, [&](auto of_update) {
      launch(
          kChecks,
          gate_residual_kernel<typename decltype(of_x)::type, typename decltype(of_update)::type>,
          grid, kGateThreads, stream, given);
    });
  });
}

}  // namespace vidc
