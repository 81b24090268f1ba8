// Kernel launches with errors by code.
#pragma once

#include <cuda_runtime.h>

#include "arguments.h"

namespace vidc {

// Throws Error: VIDC-KERNEL-GPU if the library has no code for the GPU, else VIDC-KERNEL-DRIVER.
void check_launch(const Checks& checks, cudaError_t status);

template <typename... Parameters, typename... Arguments>
void launch(const Checks& checks, void (*kernel)(Parameters...), dim3 grid, int threads,
            cudaStream_t stream, Arguments... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(threads);
  config.stream = stream;
  check_launch(checks, cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...));
}

// Returns the threads of a block with one per 8 channels of a row, in whole warps.
inline int row_threads(int64_t width) { return static_cast<int>((width / 8 + 31) / 32 * 32); }

}  // namespace vidc
