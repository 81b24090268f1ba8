#include "launch.h"
#include "operators.h"
#include "sm75_norm_silu_winograd.cuh"

namespace vidc {
namespace {

const Checks kChecks("norm_silu_winograd");

// Calls `body` with the pairs of channels that a thread has.
template <int... Pairs, typename Body>
bool with_pairs(int64_t pairs, Body&& body) {
  return ((pairs == Pairs && (body(std::integral_constant<int, Pairs>{}), true)) || ...);
}

template <typename Body>
bool with_channels(int64_t channels, Body&& body) {
  constexpr int kStep = 2 * kPixelThreads;
  return channels % kStep == 0 && with_pairs<1, 2, 3, 4, 6, 8, 12>(channels / kStep, body);
}

}  // namespace

int64_t check_norm_silu_winograd(const WinogradFrames& given) {
  const TensorView &m0 = *given.m[0], &past = given.past;
  kChecks.shape(past, {"B", 2, "H", "W", "C"});
  const int64_t batch = past.size(0), height = past.size(2), width = past.size(3),
                channels = past.size(4);
  kChecks.that(with_channels(channels, [](auto) {}), past.name,
               "C among (32, 64, 96, 128, 192, 256, 384)", std::to_string(channels));
  kChecks.shape(given.gamma, {channels});
  int others = 0;
  for (int i = 1; i < 4; ++i) others += given.m[i] != nullptr;
  kChecks.that(others == 0 || others == 3, "m1", "all of m1, m2 and m3, or none",
               std::to_string(others));
  int64_t pairs;
  if (others) {
    kChecks.shape(m0, {"B K", height, width, channels});
    kChecks.that(m0.size(0) % batch == 0, m0.name,
                 "a multiple of " + std::to_string(batch) + " pairs", std::to_string(m0.size(0)));
    pairs = m0.size(0) / batch;
  } else {
    kChecks.shape(m0, {batch, "T", height, width, channels});
    kChecks.that(m0.size(1) % 2 == 0, m0.name, "an even number of frames",
                 std::to_string(m0.size(1)));
    pairs = m0.size(1) / 2;
    kChecks.that(!given.bias, "bias", "none for frames", "a tensor");
    kChecks.that(!given.residual, "residual", "none for frames", "a tensor");
  }
  std::vector<const TensorView*> tensors{&m0, &given.gamma, &past};
  for (int i = 1; i < 4; ++i) {
    if (!given.m[i]) continue;
    kChecks.shape(*given.m[i], {m0.size(0), height, width, channels});
    tensors.push_back(given.m[i]);
  }
  if (given.bias) {
    kChecks.shape(*given.bias, {channels});
    tensors.push_back(given.bias);
  }
  if (given.residual) {
    kChecks.shape(*given.residual, {batch, 2 * pairs, height, width, channels});
    tensors.push_back(given.residual);
  }
  for (const TensorView* tensor : tensors) kChecks.dtype(*tensor, {DType::float16});
  for (const TensorView* tensor : tensors) kChecks.contiguous(*tensor);
  for (const TensorView* tensor : tensors) kChecks.device({&m0, tensor});
  return pairs;
}

void norm_silu_winograd(const WinogradFrames& given, void* inputs, void* last, void* sum,
                        cudaStream_t stream) {
  const auto data = [](const TensorView* view) {
    return view ? static_cast<const __half*>(view->data) : nullptr;
  };
  const TensorView &m0 = *given.m[0], &past = given.past;
  const bool products = given.m[1] != nullptr;
  NormSiluWinograd to{};
  for (int i = 0; i < 4; ++i) to.m[i] = data(given.m[i]);
  to.bias = data(given.bias);
  to.residual = data(given.residual);
  to.gamma = data(&given.gamma);
  to.past = data(&past);
  to.inputs = static_cast<__half*>(inputs);
  to.last = static_cast<__half*>(last);
  to.sum = static_cast<__half*>(sum);
  to.batch = past.size(0);
  to.pixels = past.size(2) * past.size(3);
  to.pairs = static_cast<int>(products ? m0.size(0) / to.batch : m0.size(1) / 2);
  constexpr int64_t kPixels = kWinogradThreads / kPixelThreads;  // of a block
  const dim3 grid(static_cast<unsigned>((to.pixels + kPixels - 1) / kPixels),
                  static_cast<unsigned>(to.batch));
  with_channels(past.size(4), [&](auto pairs) {
    constexpr int kPairs = decltype(pairs)::value;
    auto* kernel = !products        ? norm_silu_winograd_kernel<kPairs, false, false>
                   : given.residual ? norm_silu_winograd_kernel<kPairs, true, true>
                                    : norm_silu_winograd_kernel<kPairs, true, false>;
    launch(kChecks, kernel, grid, kWinogradThreads, stream, to);
  });
}

}  // namespace vidc
