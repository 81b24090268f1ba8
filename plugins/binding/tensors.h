// Torch tensors as views for the operators, through torch's stable ABI only.
#pragma once

#include <cuda_runtime.h>
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <optional>

#include "../cuda/arguments.h"

namespace vidc {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

DType dtype_of(ScalarType type);
ScalarType scalar_type_of(DType dtype);
// The view points to the tensor's sizes and strides; the tensor must outlive it.
TensorView view(const char* name, const Tensor& tensor);
cudaStream_t current_stream(const TensorView& tensor);

// Makes a device current for the guard's lifetime.
using DeviceGuard = torch::stable::accelerator::DeviceGuard;

}  // namespace vidc
