// In the place of CUDA's runtime, on a machine without a GPU: keeps what kernels are launched with.

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>
#include <vector>

namespace {

// As much of a kernel's first argument as any has, and of what lies behind it where it is smaller.
constexpr int kArgument = 24;
// How many tensor maps a kernel has at most.
constexpr int kMaps = 3;
constexpr int kWords = kArgument + kMaps;

// Of a kernel, or of filling memory: then a pointer, a value and a size.
struct Launch {
  uint32_t blocks;
  void* stream;
  uint64_t words[kWords];
};

std::vector<Launch> launches;
// What tensor maps were made of since the last launch, which are those of the next.
std::vector<const void*> mapped;
// How <<<>>> passes on what it is given.
cudaLaunchConfig_t configured;
// What the GPU says that it is.
int major, multiprocessors;

cudaError_t record(dim3 grid, cudaStream_t stream, void** arguments) {
  Launch launch{grid.x * grid.y * grid.z, stream, {}};
  std::memcpy(launch.words, arguments[0], kArgument * sizeof(uint64_t));
  for (size_t i = 0; i < mapped.size() && i < kMaps; ++i)
    launch.words[kArgument + i] = reinterpret_cast<uint64_t>(mapped[i]);
  mapped.clear();
  launches.push_back(launch);
  return cudaSuccess;
}

CUresult encode(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void* address, const cuuint64_t*,
                const cuuint64_t*, const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave,
                CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  mapped.push_back(address);
  return CUDA_SUCCESS;
}

}  // namespace

#define RECORDED extern "C" __attribute__((visibility("default")))

RECORDED int32_t recorded_launches() { return static_cast<int32_t>(launches.size()); }
RECORDED uint32_t recorded_blocks(int32_t launch) { return launches[launch].blocks; }
RECORDED void* recorded_stream(int32_t launch) { return launches[launch].stream; }
RECORDED uint64_t recorded_word(int32_t launch, int32_t word) {
  return launches[launch].words[word];
}
RECORDED int32_t recorded_words() { return kWords; }
// Forgets what was launched before, and is a GPU of this kind.
RECORDED void recorded_begin(int32_t capability, int32_t processors) {
  launches.clear();
  mapped.clear();
  major = capability;
  multiprocessors = processors;
}

extern "C" {

cudaError_t CUDARTAPI cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void*,
                                          void** arguments) {
  return record(config->gridDim, config->stream, arguments);
}
cudaError_t CUDARTAPI cudaMemsetAsync(void* memory, int value, size_t bytes, cudaStream_t stream) {
  launches.push_back(
      {0, stream, {reinterpret_cast<uint64_t>(memory), static_cast<uint64_t>(value), bytes}});
  return cudaSuccess;
}
cudaError_t CUDARTAPI cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) {
  return cudaSuccess;
}
cudaError_t CUDARTAPI cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  *value = attribute == cudaDevAttrComputeCapabilityMajor ? major : multiprocessors;
  return cudaSuccess;
}
// It is asked for one function alone.
cudaError_t CUDARTAPI cudaGetDriverEntryPointByVersion(const char*, void** function, unsigned,
                                                       unsigned long long,
                                                       cudaDriverEntryPointQueryResult* result) {
  *function = reinterpret_cast<void*>(&encode);
  *result = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t CUDARTAPI cudaGetLastError() { return cudaSuccess; }
const char* CUDARTAPI cudaGetErrorString(cudaError_t) { return "none"; }

// What compiled kernels ask for when their library is opened, and by <<<>>>.
void** __cudaRegisterFatBinary(void*) {
  static void* handle = nullptr;
  return &handle;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterFunction(void**, const char*, char*, const char*, int, uint3*, uint3*, dim3*,
                            dim3*, int*) {}
char __cudaInitModule(void**) { return 0; }
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, cudaStream_t stream) {
  configured.gridDim = grid;
  configured.blockDim = block;
  configured.dynamicSmemBytes = shared;
  configured.stream = stream;
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream) {
  *grid = configured.gridDim;
  *block = configured.blockDim;
  *shared = configured.dynamicSmemBytes;
  *static_cast<cudaStream_t*>(stream) = configured.stream;
  return cudaSuccess;
}
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void*) {
  *kernel = nullptr;
  return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t, dim3 grid, dim3, void** arguments, size_t,
                               cudaStream_t stream) {
  return record(grid, stream, arguments);
}

}  // extern "C"
