#include "tensorrt_tensors.h"

namespace vidc {

using nvinfer1::DataType;

DType dtype_of(DataType type) {
  switch (type) {
    case DataType::kFLOAT: return DType::float32;
    case DataType::kHALF: return DType::float16;
    case DataType::kBF16: return DType::bfloat16;
    case DataType::kFP8: return DType::float8_e4m3fn;
    case DataType::kINT8: return DType::int8;
    case DataType::kINT64: return DType::int64;
    default: return DType::other;
  }
}

DataType data_type_of(DType dtype) {
  switch (dtype) {
    case DType::float32: return DataType::kFLOAT;
    case DType::float16: return DataType::kHALF;
    case DType::bfloat16: return DataType::kBF16;
    case DType::float8_e4m3fn: return DataType::kFP8;
    case DType::int8: return DataType::kINT8;
    case DType::int64: return DataType::kINT64;
    default: throw std::logic_error("[VIDC-KERNEL-ARGUMENT] an output has no dtype");
  }
}

Tensors::Tensors(const Operator& op, const std::vector<nvinfer1::PluginTensorDesc>& described,
                 const void* const* data, int device)
    : layouts_(new Layout[described.size()]) {
  for (size_t i = 0; i < described.size(); ++i) {
    const nvinfer1::Dims& dims = described[i].dims;
    Layout& layout = layouts_[i];
    int64_t stride = 1;
    for (int axis = dims.nbDims - 1; axis >= 0; --axis) {
      layout.sizes[axis] = dims.d[axis];
      layout.strides[axis] = stride;
      stride *= dims.d[axis];
    }
    views_.push_back({op.inputs[i].name, data ? const_cast<void*>(data[i]) : nullptr,
                      dtype_of(described[i].type), dims.nbDims, layout.sizes, layout.strides,
                      device, "cuda:" + std::to_string(device)});
  }
}

}  // namespace vidc
