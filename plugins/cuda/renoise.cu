#include "launch.h"
#include "operators.h"
#include "sm75_renoise.cuh"

namespace vidc {
namespace {

const Checks kChecks("renoise");
constexpr int kThreads = 256;
constexpr int kEach = 4;

}  // namespace

void check_renoise(const TensorView& latent, const TensorView& flow, const TensorView& noise) {
  kChecks.shape(latent, {"B", "F", "C", "h", "w"});
  kChecks.like(flow, latent);
  kChecks.like(noise, latent);
  for (const TensorView* tensor : {&latent, &flow, &noise}) {
    kChecks.dtype(*tensor, {DType::float32});
    kChecks.contiguous(*tensor);
  }
  kChecks.device({&latent, &flow, &noise});
}

void renoise(const TensorView& latent, const TensorView& flow, const TensorView& noise, float sigma,
             float next_sigma, cudaStream_t stream) {
  Renoise given{};
  given.latent = static_cast<float*>(latent.data);
  given.flow = static_cast<const float*>(flow.data);
  given.noise = static_cast<const float*>(noise.data);
  given.elements = latent.elements();
  given.sigma = sigma;
  given.next_sigma = next_sigma;
  const int64_t each = kThreads * kEach;
  const dim3 grid(static_cast<unsigned>((given.elements + each - 1) / each));
  launch(kChecks, renoise_kernel, grid, kThreads, stream, given);
}

}  // namespace vidc
