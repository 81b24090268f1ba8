// TensorRT's tensor descriptions as views for the operators.
#pragma once

#include <NvInferRuntime.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "tensorrt_operators.h"

namespace vidc {

DType dtype_of(nvinfer1::DataType type);
nvinfer1::DataType data_type_of(DType dtype);  // throws std::logic_error for DType::other

// Views of an operator's inputs, all on one device and in linear format.
class Tensors {
 public:
  // `data` is null if only shapes and dtypes matter.
  Tensors(const Operator& op, const std::vector<nvinfer1::PluginTensorDesc>& described,
          const void* const* data, int device);
  const std::vector<TensorView>& views() const { return views_; }

 private:
  struct Layout {
    int64_t sizes[nvinfer1::Dims::MAX_DIMS];
    int64_t strides[nvinfer1::Dims::MAX_DIMS];
  };
  std::unique_ptr<Layout[]> layouts_;
  std::vector<TensorView> views_;
};

}  // namespace vidc
