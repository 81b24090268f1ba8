#include "launch.h"

namespace vidc {

void check_launch(const Checks& checks, cudaError_t status) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // Clears the error, so later calls do not report it again.
  const std::string name = std::string("vidc::") + checks.name();
  if (status == cudaErrorNoKernelImageForDevice || status == cudaErrorUnsupportedPtxVersion ||
      status == cudaErrorInvalidDeviceFunction) {
    throw Error(
        "VIDC-KERNEL-GPU",
        name + ": the library has no kernel for this GPU: " + cudaGetErrorString(status),
        "build the library for this GPU, and update its driver to one for CUDA 13");
  }
  throw Error("VIDC-KERNEL-DRIVER",
              name + ": the kernel launch failed: " + cudaGetErrorString(status),
              "check the GPU and its driver with nvidia-smi and `vidc doctor`");
}

}  // namespace vidc
