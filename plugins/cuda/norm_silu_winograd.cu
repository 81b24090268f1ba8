#include "launch.h"
#include "operators.h"
#include "sm75_norm_silu_winograd.cuh"

namespace vidc {
namespace {

const Checks kChecks("norm_silu_winograd");

// Calls `body` with the value if it is one of `Values`; returns false if it is not.
template <int... Values, typename Body>
bool with_value(int64_t value, Body&& body) {
  return ((value == Values && (body(std::integral_constant<int, Values>{}), true)) || ...);
}

// Calls `body` with a thread's number of channel pairs; returns false for unsupported channels.
template <typename Body>
bool with_channels(int64_t channels, Body&& body) {
  constexpr int kStep = 2 * kPixelThreads;
  return channels % kStep == 0 && with_value<1, 2, 3, 4, 6, 8, 12>(channels / kStep, body);
}

template <typename Body>
bool with_tile(int64_t tile, Body&& body) {
  return with_value<2, 3, 4>(tile, body);
}

// Returns the names of the products from `m1` on for whose index `chosen` returns true.
template <typename Chosen>
std::string names(Chosen chosen) {
  std::string found;
  for (int i = 1; i < kMostProducts; ++i)
    if (chosen(i)) found += (found.empty() ? "m" : ", m") + std::to_string(i);
  return found;
}

}  // namespace

int64_t check_norm_silu_winograd(const WinogradFrames& given) {
  const TensorView &m0 = *given.m[0], &past = given.past;
  const int64_t tile = given.tile;
  kChecks.that(with_tile(tile, [](auto) {}), "tile", "one of (2, 3, 4)", std::to_string(tile));
  kChecks.shape(past, {"B", 2, "H", "W", "C"});
  const int64_t batch = past.size(0), height = past.size(2), width = past.size(3),
                channels = past.size(4);
  kChecks.that(with_channels(channels, [](auto) {}), past.name,
               "C among (32, 64, 96, 128, 192, 256, 384)", std::to_string(channels));
  kChecks.shape(given.gamma, {channels});
  const std::string found = names([&](int i) { return given.m[i] != nullptr; });
  int64_t tiles;
  if (!found.empty()) {
    const std::string wanted = names([&](int i) { return i < tile + 2; });
    kChecks.that(found == wanted, "m1", wanted + ", or none of them", found);
    kChecks.shape(m0, {"B K", height, width, channels});
    kChecks.that(m0.size(0) % batch == 0, m0.name,
                 "a multiple of " + std::to_string(batch) + " tiles", std::to_string(m0.size(0)));
    tiles = m0.size(0) / batch;
  } else {
    kChecks.shape(m0, {batch, "T", height, width, channels});
    kChecks.that(m0.size(1) % tile == 0, m0.name,
                 "a multiple of " + std::to_string(tile) + " frames", std::to_string(m0.size(1)));
    tiles = m0.size(1) / tile;
    kChecks.that(!given.bias, "bias", "none for frames", "a tensor");
    kChecks.that(!given.residual, "residual", "none for frames", "a tensor");
    kChecks.that(!given.keep_sum, "keep_sum", "False for frames", "True");
  }
  std::vector<const TensorView*> tensors{&m0, &given.gamma, &past};
  for (int i = 1; i < kMostProducts; ++i) {
    if (!given.m[i]) continue;
    kChecks.shape(*given.m[i], {m0.size(0), height, width, channels});
    tensors.push_back(given.m[i]);
  }
  if (given.bias) {
    kChecks.shape(*given.bias, {channels});
    tensors.push_back(given.bias);
  }
  if (given.residual) {
    kChecks.shape(*given.residual, {batch, tile * tiles, height, width, channels});
    tensors.push_back(given.residual);
  }
  for (const TensorView* tensor : tensors) kChecks.dtype(*tensor, {DType::float16});
  for (const TensorView* tensor : tensors) kChecks.contiguous(*tensor);
  for (const TensorView* tensor : tensors) kChecks.device({&m0, tensor});
  return tiles;
}

void norm_silu_winograd(const WinogradFrames& given, void* inputs, void* last, void* sum,
                        cudaStream_t stream) {
  const auto data = [](const TensorView* view) {
    return view ? static_cast<const __half*>(view->data) : nullptr;
  };
  const TensorView &m0 = *given.m[0], &past = given.past;
  const bool products = given.m[1] != nullptr;
  NormSiluWinograd to{};
  for (int i = 0; i < kMostProducts; ++i) to.m[i] = data(given.m[i]);
  to.bias = data(given.bias);
  to.residual = data(given.residual);
  to.gamma = data(&given.gamma);
  to.past = data(&past);
  to.inputs = static_cast<__half*>(inputs);
  to.last = static_cast<__half*>(last);
  to.sum = given.keep_sum ? static_cast<__half*>(sum) : nullptr;
  to.batch = past.size(0);
  to.pixels = past.size(2) * past.size(3);
  to.tiles = static_cast<int>(products ? m0.size(0) / to.batch : m0.size(1) / given.tile);
  constexpr int64_t kPixels = kWinogradThreads / kPixelThreads;  // of a block
  const dim3 grid(static_cast<unsigned>((to.pixels + kPixels - 1) / kPixels),
                  static_cast<unsigned>(to.batch));
  with_channels(past.size(4), [&](auto pairs) {
    with_tile(given.tile, [&](auto tile) {
      constexpr int kPairs = decltype(pairs)::value, kTile = decltype(tile)::value;
      auto* kernel = !products        ? norm_silu_winograd_kernel<kPairs, kTile, false, false>
                     : given.residual ? norm_silu_winograd_kernel<kPairs, kTile, true, true>
                                      : norm_silu_winograd_kernel<kPairs, kTile, true, false>;
      launch(kChecks, kernel, grid, kWinogradThreads, stream, to);
    });
  });
}

}  // namespace vidc
