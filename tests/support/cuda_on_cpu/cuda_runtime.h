// Launches on a CPU: one block after another, each of whose threads is a fiber.
#pragma once

#include "cuda_runtime_api.h"

enum {
  cudaSuccess,
  cudaErrorLaunchFailure,
  cudaErrorNoKernelImageForDevice,
  cudaErrorUnsupportedPtxVersion,
  cudaErrorInvalidDeviceFunction,
};
inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline const char* cudaGetErrorString(cudaError_t) { return "its threads wait for each other"; }

// A GPU that has the kernels for all.
enum cudaDeviceAttr { cudaDevAttrComputeCapabilityMajor, cudaDevAttrMultiProcessorCount };
inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  *value = 8;
  return cudaSuccess;
}

struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  cudaStream_t stream;
};

template <typename... Parameters>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Parameters... arguments) {
  gridDim = config->gridDim;
  fibers::when_idle = [] { return false; };
  for (blockIdx.z = 0; blockIdx.z < gridDim.z; ++blockIdx.z)
    for (blockIdx.y = 0; blockIdx.y < gridDim.y; ++blockIdx.y)
      for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x)
        if (!fibers::run(config->blockDim.x, [&] { kernel(arguments...); }))
          return cudaErrorLaunchFailure;
  return cudaSuccess;
}
