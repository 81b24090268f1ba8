// From torch's tensors to what the operators take, through torch's stable ABI alone.
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
// Sizes and strides stay the tensor's, which has to outlive the view.
TensorView view(const char* name, const Tensor& tensor);
cudaStream_t current_stream(const TensorView& tensor);

// Makes a tensor's device current, and the one before current again.
using DeviceGuard = torch::stable::accelerator::DeviceGuard;

}  // namespace vidc
