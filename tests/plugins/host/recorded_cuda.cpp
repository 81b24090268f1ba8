// In the place of CUDA's runtime, on a machine without a GPU: keeps what kernels are launched with.

#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>
#include <vector>

namespace {

// As much of a kernel's one argument as any has, and of what lies behind it where it is smaller.
constexpr int kWords = 24;

struct Launch {
  uint32_t blocks, threads;
  void* stream;
  uint64_t argument[kWords];
};

std::vector<Launch> launches;

}  // namespace

#define RECORDED extern "C" __attribute__((visibility("default")))

RECORDED int32_t recorded_launches() { return static_cast<int32_t>(launches.size()); }
RECORDED void* recorded_stream(int32_t launch) { return launches[launch].stream; }
RECORDED uint64_t recorded_word(int32_t launch, int32_t word) {
  return launches[launch].argument[word];
}
RECORDED int32_t recorded_words() { return kWords; }
RECORDED void recorded_forget() { launches.clear(); }

extern "C" {

cudaError_t CUDARTAPI cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void*,
                                          void** arguments) {
  Launch launch{config->gridDim.x * config->gridDim.y * config->gridDim.z,
                config->blockDim.x,
                config->stream,
                {}};
  std::memcpy(launch.argument, arguments[0], sizeof(launch.argument));
  launches.push_back(launch);
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t CUDARTAPI cudaGetLastError() { return cudaSuccess; }
const char* CUDARTAPI cudaGetErrorString(cudaError_t) { return "none"; }

// What compiled kernels ask for when their library is opened, or would by <<<>>>.
void** __cudaRegisterFatBinary(void*) {
  static void* handle = nullptr;
  return &handle;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterFunction(void**, const char*, char*, const char*, int, uint3*, uint3*, dim3*,
                            dim3*, int*) {}
char __cudaInitModule(void**) { return 0; }
cudaError_t __cudaPopCallConfiguration(dim3*, dim3*, size_t*, void*) { return cudaSuccess; }
cudaError_t __cudaGetKernel(cudaKernel_t*, const void*) { return cudaErrorNotSupported; }
cudaError_t __cudaLaunchKernel(cudaKernel_t, dim3, dim3, void**, size_t, cudaStream_t) {
  return cudaErrorNotSupported;
}

}  // extern "C"
