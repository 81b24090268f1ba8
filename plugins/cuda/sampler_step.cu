#include "launch.h"
#include "operators.h"
#include "sm75_sampler_step.cuh"

namespace vidc {
namespace {

const Checks kChecks("sampler_step");

}  // namespace

void check_sampler_step(const SamplerStepArguments& given) {
  const TensorView& velocity = given.velocity;
  kChecks.shape(velocity, {"N", "T", "C", "h", "w"});
  const int64_t batch = velocity.size(0), frames = velocity.size(1), channels = velocity.size(2),
                height = velocity.size(3), width = velocity.size(4);
  kChecks.that(batch == 1 || batch == 2, velocity.name, "1 or 2 predictions",
               std::to_string(batch));
  const int64_t elements = channels * height * width;
  kChecks.that(elements % 4 == 0, velocity.name, "C h w a multiple of 4",
               std::to_string(elements));
  kChecks.shape(given.table, {"S", kCoefficients});
  std::vector<const TensorView*> tensors{&velocity};
  if (given.noise) {
    kChecks.shape(*given.noise, {given.table.size(0), 1, frames, channels, height, width});
    tensors.push_back(given.noise);
  }
  kChecks.shape(given.guidance, {frames});
  kChecks.shape(given.progress, {2});
  kChecks.shape(given.latent, {1, frames, channels, height, width});
  kChecks.shape(given.sample, {batch, frames, 2 * channels, height, width});
  kChecks.shape(given.timestep, {1});
  for (const TensorView* tensor :
       {&given.guidance, &given.table, &given.latent, &given.sample, &given.timestep})
    tensors.push_back(tensor);
  for (const TensorView* tensor : tensors) kChecks.dtype(*tensor, {DType::float32});
  kChecks.dtype(given.progress, {DType::int64});
  tensors.push_back(&given.progress);
  for (const TensorView* tensor : tensors) kChecks.contiguous(*tensor);
  for (const TensorView* tensor : tensors) kChecks.device({&velocity, tensor});
}

void sampler_step(const SamplerStepArguments& given, cudaStream_t stream) {
  const auto data = [](const TensorView& view) { return static_cast<float*>(view.data); };
  const TensorView& velocity = given.velocity;
  SamplerStep to{};
  to.velocity = data(velocity);
  to.noise = given.noise ? data(*given.noise) : nullptr;
  to.guidance = data(given.guidance);
  to.table = data(given.table);
  to.progress = static_cast<int64_t*>(given.progress.data);
  to.latent = data(given.latent);
  to.sample = data(given.sample);
  to.timestep = data(given.timestep);
  to.elements = velocity.size(2) * velocity.size(3) * velocity.size(4);
  to.frames = velocity.size(1);
  to.steps = given.table.size(0);
  constexpr int64_t kElements = 4 * kSamplerThreads;  // of a block
  const dim3 grid(static_cast<unsigned>((to.elements + kElements - 1) / kElements),
                  static_cast<unsigned>(to.frames));
  auto* kernel = velocity.size(0) == 2
                     ? (to.noise ? sampler_step_kernel<2, true> : sampler_step_kernel<2, false>)
                     : (to.noise ? sampler_step_kernel<1, true> : sampler_step_kernel<1, false>);
  launch(kChecks, kernel, grid, kSamplerThreads, stream, to);
}

}  // namespace vidc
