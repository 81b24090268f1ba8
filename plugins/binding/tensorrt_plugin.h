// Any operator of the table as TensorRT's IPluginV3.
#pragma once

#include <NvInferRuntime.h>

#include <string>
#include <vector>

#include "tensorrt_operators.h"

namespace vidc {

constexpr char kNamespace[] = "vidc";
// Never changes: a plan of another ABI must find its creator, which refuses it.
constexpr char kVersion[] = "1";

class Plugin final : public nvinfer1::IPluginV3,
                     public nvinfer1::IPluginV3OneCore,
                     public nvinfer1::IPluginV3OneBuildV2,
                     public nvinfer1::IPluginV3OneRuntime {
 public:
  // Throws Error: VIDC-KERNEL-ARGUMENT or VIDC-KERNEL-ABI.
  Plugin(const Operator& op, const Attributes& attributes);
  Plugin(const Plugin& other);
  Plugin& operator=(const Plugin&) = delete;

  nvinfer1::IPluginCapability* getCapabilityInterface(
      nvinfer1::PluginCapabilityType type) noexcept override;
  nvinfer1::IPluginV3* clone() noexcept override;

  const char* getPluginName() const noexcept override { return operator_.name; }
  const char* getPluginVersion() const noexcept override { return kVersion; }
  const char* getPluginNamespace() const noexcept override { return kNamespace; }

  int32_t getNbOutputs() const noexcept override { return static_cast<int32_t>(outputs_.size()); }
  int32_t getOutputDataTypes(nvinfer1::DataType* output_types, int32_t outputs,
                             const nvinfer1::DataType* input_types,
                             int32_t inputs) const noexcept override;
  int32_t getOutputShapes(const nvinfer1::DimsExprs* input_shapes, int32_t inputs,
                          const nvinfer1::DimsExprs*, int32_t, nvinfer1::DimsExprs* output_shapes,
                          int32_t outputs, nvinfer1::IExprBuilder&) noexcept override;
  bool supportsFormatCombination(int32_t index, const nvinfer1::DynamicPluginTensorDesc* tensors,
                                 int32_t inputs, int32_t outputs) noexcept override;
  int32_t configurePlugin(const nvinfer1::DynamicPluginTensorDesc* input, int32_t inputs,
                          const nvinfer1::DynamicPluginTensorDesc* output,
                          int32_t outputs) noexcept override;
  size_t getWorkspaceSize(const nvinfer1::DynamicPluginTensorDesc* input, int32_t inputs,
                          const nvinfer1::DynamicPluginTensorDesc*,
                          int32_t outputs) const noexcept override;
  int32_t getAliasedInput(int32_t output) noexcept override;
  const char* getTimingCacheID() noexcept override { return description_.c_str(); }
  const char* getMetadataString() noexcept override { return description_.c_str(); }

  int32_t onShapeChange(const nvinfer1::PluginTensorDesc* input, int32_t inputs,
                        const nvinfer1::PluginTensorDesc* output,
                        int32_t outputs) noexcept override;
  int32_t enqueue(const nvinfer1::PluginTensorDesc* input, const nvinfer1::PluginTensorDesc*,
                  const void* const* inputs, void* const* outputs, void* workspace,
                  cudaStream_t stream) noexcept override;
  nvinfer1::IPluginV3* attachToContext(nvinfer1::IPluginResourceContext*) noexcept override;
  const nvinfer1::PluginFieldCollection* getFieldsToSerialize() noexcept override;

 private:
  void check_counts(int32_t inputs, int32_t outputs) const;
  void check_dtype(const std::vector<DType>& dtypes, size_t input) const;
  DType output_dtype(const Output& output, const std::vector<DType>& inputs) const;
  void check_shapes(const std::vector<nvinfer1::PluginTensorDesc>& inputs) const;

  const Operator& operator_;
  Checks checks_;
  Attributes attributes_;
  std::vector<Output> outputs_;
  std::string description_;
  std::vector<nvinfer1::PluginField> fields_;
  nvinfer1::PluginFieldCollection collection_;
  int32_t inputs_ = 0;  // number of inputs at the last onShapeChange
};

}  // namespace vidc
