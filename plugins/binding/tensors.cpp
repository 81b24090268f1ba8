#include "tensors.h"

#include <torch/csrc/inductor/aoti_torch/c/shim.h>

// Weak, because a torch without CUDA lacks this function. Before torch 2.13, torch/csrc/stable has
// no function that returns a stream handle.
extern "C" __attribute__((weak)) AOTITorchError aoti_torch_get_current_cuda_stream(int32_t device,
                                                                                   void** stream);

namespace vidc {

DType dtype_of(ScalarType type) {
  switch (type) {
    case ScalarType::Float: return DType::float32;
    case ScalarType::Half: return DType::float16;
    case ScalarType::BFloat16: return DType::bfloat16;
    case ScalarType::Float8_e4m3fn: return DType::float8_e4m3fn;
    case ScalarType::Char: return DType::int8;
    case ScalarType::Long: return DType::int64;
    default: return DType::other;
  }
}

ScalarType scalar_type_of(DType dtype) {
  switch (dtype) {
    case DType::float32: return ScalarType::Float;
    case DType::float16: return ScalarType::Half;
    case DType::bfloat16: return ScalarType::BFloat16;
    case DType::float8_e4m3fn: return ScalarType::Float8_e4m3fn;
    case DType::int8: return ScalarType::Char;
    case DType::int64: return ScalarType::Long;
    default: return ScalarType::Undefined;
  }
}

TensorView view(const char* name, const Tensor& tensor) {
  const bool cuda = tensor.is_cuda();
  const int device = cuda ? tensor.get_device_index() : -1;
  return {name,
          tensor.data_ptr(),
          dtype_of(tensor.scalar_type()),
          static_cast<int>(tensor.dim()),
          tensor.sizes().data(),
          tensor.strides().data(),
          device,
          cuda              ? "cuda:" + std::to_string(device)
          : tensor.is_cpu() ? "cpu"
                            : "another device"};
}

cudaStream_t current_stream(const TensorView& tensor) {
  void* stream = nullptr;
  if (!aoti_torch_get_current_cuda_stream ||
      aoti_torch_get_current_cuda_stream(tensor.device, &stream) != AOTI_TORCH_SUCCESS)
    throw Error("VIDC-KERNEL-DRIVER", "torch returned no current stream for " + tensor.where,
                "use a build of PyTorch for CUDA");
  return static_cast<cudaStream_t>(stream);
}

}  // namespace vidc
