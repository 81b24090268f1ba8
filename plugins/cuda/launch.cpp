#include "launch.h"

namespace vidc {

void check_launch(const Checks& checks, cudaError_t status) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // It has been reported: what comes next must not see it again.
  const std::string name = std::string("vidc::") + checks.name();
  if (status == cudaErrorNoKernelImageForDevice || status == cudaErrorUnsupportedPtxVersion ||
      status == cudaErrorInvalidDeviceFunction) {
    throw Error(
        "VIDC-KERNEL-GPU",
        name + ": the library of kernels has none for this GPU: " + cudaGetErrorString(status),
        "build the library for this GPU, and update its driver to one for CUDA 13");
  }
  throw Error("VIDC-KERNEL-DRIVER",
              name + ": a kernel was not launched: " + cudaGetErrorString(status),
              "check the GPU and its driver with nvidia-smi and `vidc doctor`");
}

}  // namespace vidc
