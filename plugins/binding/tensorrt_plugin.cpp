#include "tensorrt_plugin.h"

#include <cuda_runtime.h>

#include <algorithm>

#include "../cuda/launch.h"
#include "tensorrt_report.h"
#include "tensorrt_tensors.h"

namespace vidc {

using nvinfer1::DataType;
using nvinfer1::DynamicPluginTensorDesc;
using nvinfer1::PluginTensorDesc;

Plugin::Plugin(const Operator& op, const Attributes& attributes)
    : operator_(op), checks_(op.name), attributes_(attributes) {
  if (op.check_attributes) op.check_attributes(checks_, attributes_);
  outputs_ = op.outputs(attributes_);
  description_ = attributes_.description();
}

Plugin::Plugin(const Plugin& other) : Plugin(other.operator_, other.attributes_) {
  inputs_ = other.inputs_;
}

nvinfer1::IPluginCapability* Plugin::getCapabilityInterface(
    nvinfer1::PluginCapabilityType type) noexcept {
  switch (type) {
    case nvinfer1::PluginCapabilityType::kCORE:
      return static_cast<nvinfer1::IPluginV3OneCore*>(this);
    case nvinfer1::PluginCapabilityType::kBUILD:
      return static_cast<nvinfer1::IPluginV3OneBuildV2*>(this);
    case nvinfer1::PluginCapabilityType::kRUNTIME:
      return static_cast<nvinfer1::IPluginV3OneRuntime*>(this);
  }
  return nullptr;
}

nvinfer1::IPluginV3* Plugin::clone() noexcept {
  nvinfer1::IPluginV3* made = nullptr;
  reported([&] { made = new Plugin(*this); });
  return made;
}

nvinfer1::IPluginV3* Plugin::attachToContext(nvinfer1::IPluginResourceContext*) noexcept {
  return clone();
}

int32_t Plugin::getOutputDataTypes(DataType* output_types, int32_t outputs,
                                   const DataType* input_types, int32_t inputs) const noexcept {
  return reported([&] {
    check_counts(inputs, outputs);
    std::vector<DType> dtypes;
    for (int32_t i = 0; i < inputs; ++i) dtypes.push_back(dtype_of(input_types[i]));
    for (size_t i = 0; i < dtypes.size(); ++i) check_dtype(dtypes, i);
    for (size_t i = 0; i < outputs_.size(); ++i)
      output_types[i] = data_type_of(output_dtype(outputs_[i], dtypes));
  });
}

int32_t Plugin::getOutputShapes(const nvinfer1::DimsExprs* input_shapes, int32_t inputs,
                                const nvinfer1::DimsExprs*, int32_t,
                                nvinfer1::DimsExprs* output_shapes, int32_t outputs,
                                nvinfer1::IExprBuilder&) noexcept {
  return reported([&] {
    check_counts(inputs, outputs);
    for (size_t i = 0; i < outputs_.size(); ++i) {
      const Output& output = outputs_[i];
      nvinfer1::DimsExprs& shape = output_shapes[i];
      if (output.shape.empty()) {
        shape = input_shapes[output.like];
        continue;
      }
      shape.nbDims = static_cast<int32_t>(output.shape.size());
      for (size_t axis = 0; axis < output.shape.size(); ++axis) {
        const Axis& from = output.shape[axis];
        const nvinfer1::DimsExprs& given = input_shapes[from.input];
        checks_.that(from.axis < given.nbDims, operator_.inputs[from.input].name,
                     "a dimension " + std::to_string(from.axis),
                     std::to_string(given.nbDims) + " dimensions");
        shape.d[axis] = given.d[from.axis];
      }
    }
  });
}

bool Plugin::supportsFormatCombination(int32_t index, const DynamicPluginTensorDesc* tensors,
                                       int32_t inputs, int32_t outputs) noexcept {
  bool supported = false;
  reported([&] {
    check_counts(inputs, outputs);
    checks_.that(0 <= index && index < inputs + outputs, "index",
                 "one of " + std::to_string(inputs + outputs) + " tensors", std::to_string(index));
    const auto dtype = [&](int i) { return dtype_of(tensors[i].desc.type); };
    if (tensors[index].desc.format != nvinfer1::TensorFormat::kLINEAR) return;
    if (index < inputs) {
      const Input& input = operator_.inputs[index];
      supported = input.allowed.empty()
                      ? dtype(index) == dtype(input.like)
                      : std::count(input.allowed.begin(), input.allowed.end(), dtype(index)) > 0;
    } else {
      std::vector<DType> given;
      for (int32_t i = 0; i < inputs; ++i) given.push_back(dtype(i));
      supported = dtype(index) == output_dtype(outputs_[index - inputs], given);
    }
  });
  return supported;
}

int32_t Plugin::configurePlugin(const DynamicPluginTensorDesc* input, int32_t inputs,
                                const DynamicPluginTensorDesc*, int32_t outputs) noexcept {
  return reported([&] {
    check_counts(inputs, outputs);
    std::vector<PluginTensorDesc> given;
    for (int32_t i = 0; i < inputs; ++i) {
      given.push_back(input[i].desc);
      nvinfer1::Dims& dims = given.back().dims;
      for (int axis = 0; axis < dims.nbDims; ++axis)
        if (dims.d[axis] < 0) dims.d[axis] = input[i].opt.d[axis];
    }
    check_shapes(given);
  });
}

size_t Plugin::getWorkspaceSize(const DynamicPluginTensorDesc* input, int32_t inputs,
                                const DynamicPluginTensorDesc*, int32_t outputs) const noexcept {
  int64_t bytes = 0;
  reported([&] {
    if (!operator_.workspace) return;
    check_counts(inputs, outputs);
    std::vector<PluginTensorDesc> largest;
    for (int32_t i = 0; i < inputs; ++i) {
      largest.push_back(input[i].desc);
      nvinfer1::Dims& dims = largest.back().dims;
      for (int axis = 0; axis < dims.nbDims; ++axis)
        dims.d[axis] = std::max(dims.d[axis], input[i].max.d[axis]);
    }
    check_shapes(largest);
    bytes = operator_.workspace(Tensors(operator_, largest, nullptr, 0).views(), attributes_);
  });
  return static_cast<size_t>(bytes);
}

int32_t Plugin::getAliasedInput(int32_t output) noexcept {
  return 0 <= output && output < getNbOutputs() ? outputs_[output].written : -1;
}

int32_t Plugin::onShapeChange(const PluginTensorDesc* input, int32_t inputs,
                              const PluginTensorDesc*, int32_t outputs) noexcept {
  return reported([&] {
    check_counts(inputs, outputs);
    check_shapes({input, input + inputs});
    inputs_ = inputs;
  });
}

int32_t Plugin::enqueue(const PluginTensorDesc* input, const PluginTensorDesc*,
                        const void* const* inputs, void* const* outputs, void* workspace,
                        cudaStream_t stream) noexcept {
  return reported([&] {
    check_counts(inputs_, getNbOutputs());
    for (size_t i = 0; i < outputs_.size(); ++i) {
      const Output& output = outputs_[i];
      checks_.that(output.written < 0 || outputs[i] == inputs[output.written], output.name,
                   "the address of its input (preview feature ALIASED_PLUGIN_IO_10_03)",
                   "another address");
    }
    int device = 0;
    check_launch(checks_, cudaGetDevice(&device));
    const Tensors tensors(operator_, {input, input + inputs_}, inputs, device);
    operator_.check(tensors.views(), attributes_);
    operator_.launch(tensors.views(), attributes_, outputs, workspace, stream);
  });
}

const nvinfer1::PluginFieldCollection* Plugin::getFieldsToSerialize() noexcept {
  const int32_t failed = reported([&] { fields_ = attributes_.fields(); });
  collection_ = {static_cast<int32_t>(fields_.size()), fields_.data()};
  return failed ? nullptr : &collection_;
}

void Plugin::check_counts(int32_t inputs, int32_t outputs) const {
  const int32_t most = static_cast<int32_t>(operator_.inputs.size());
  const int32_t least = most - operator_.optional_inputs;
  checks_.that(
      least <= inputs && inputs <= most, "inputs",
      (least < most ? std::to_string(least) + " to " : "") + std::to_string(most) + " tensors",
      std::to_string(inputs));
  checks_.that(outputs == getNbOutputs(), "outputs", std::to_string(getNbOutputs()) + " tensors",
               std::to_string(outputs));
}

void Plugin::check_dtype(const std::vector<DType>& dtypes, size_t index) const {
  const Input& input = operator_.inputs[index];
  TensorView view{};
  view.name = input.name;
  view.dtype = dtypes[index];
  checks_.dtype(view,
                input.allowed.empty() ? std::vector<DType>{dtypes[input.like]} : input.allowed);
}

DType Plugin::output_dtype(const Output& output, const std::vector<DType>& inputs) const {
  return output.dtype == DType::other ? inputs[output.like] : output.dtype;
}

void Plugin::check_shapes(const std::vector<PluginTensorDesc>& inputs) const {
  operator_.check(Tensors(operator_, inputs, nullptr, 0).views(), attributes_);
}

}  // namespace vidc
