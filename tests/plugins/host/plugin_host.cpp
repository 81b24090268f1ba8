// Does with a library of plugins what TensorRT does, for tests that call it through ctypes.
//
// Functions that may fail return what the plugin returned, null for no object.

#include <NvInferRuntime.h>
#include <dlfcn.h>

#include <deque>
#include <vector>

namespace {

using namespace nvinfer1;

using GetCreators = IPluginCreatorInterface* const* (*)(int32_t&);
using SetLoggerFinder = void (*)(ILoggerFinder*);
using LastError = const char* (*)();

// Every size that a shape is made of is known here.
class Size final : public IDimensionExpr {
 public:
  explicit Size(int64_t value) : value_(value) { mImpl = &value_; }
  ~Size() noexcept override = default;

 private:
  struct Value final : apiv::VDimensionExpr {
    explicit Value(int64_t given) : value(given) {}
    bool isConstant() const override { return true; }
    int64_t getConstantValue() const override { return value; }
    bool isSizeTensor() const override { return false; }
    int64_t value;
  };
  Value value_;
};

// Plugins of sizes taken over from inputs compute none.
class NoBuilder final : public IExprBuilder {
 public:
  NoBuilder() { mImpl = nullptr; }
  ~NoBuilder() noexcept override = default;
};

template <typename Capability>
Capability* capability(IPluginV3* plugin, PluginCapabilityType type) {
  return static_cast<Capability*>(plugin->getCapabilityInterface(type));
}

IPluginV3OneCore* core(IPluginV3* plugin) {
  return capability<IPluginV3OneCore>(plugin, PluginCapabilityType::kCORE);
}

IPluginV3OneBuildV2* build(IPluginV3* plugin) {
  return capability<IPluginV3OneBuildV2>(plugin, PluginCapabilityType::kBUILD);
}

IPluginV3OneRuntime* runtime(IPluginV3* plugin) {
  return capability<IPluginV3OneRuntime>(plugin, PluginCapabilityType::kRUNTIME);
}

IPluginCreatorV3One* creator(void* library, int32_t index) {
  int32_t count = 0;
  return static_cast<IPluginCreatorV3One*>(
      reinterpret_cast<GetCreators>(dlsym(library, "getCreators"))(count)[index]);
}

}  // namespace

#define HOST extern "C" __attribute__((visibility("default")))

// What Python's structures have to be as large as.
HOST int32_t host_size_of_tensor() { return sizeof(PluginTensorDesc); }
HOST int32_t host_size_of_dynamic_tensor() { return sizeof(DynamicPluginTensorDesc); }
HOST int32_t host_size_of_field() { return sizeof(PluginField); }

HOST void* host_open(const char* path) {
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library) reinterpret_cast<SetLoggerFinder>(dlsym(library, "setLoggerFinder"))(nullptr);
  return library;
}
HOST const char* host_open_error() { return dlerror(); }
HOST const char* host_error(void* library) {
  return reinterpret_cast<LastError>(dlsym(library, "vidc_plugin_error"))();
}

HOST int32_t host_creators(void* library) {
  int32_t count = 0;
  reinterpret_cast<GetCreators>(dlsym(library, "getCreators"))(count);
  return count;
}
HOST const char* host_creator_kind(void* library, int32_t index) {
  return creator(library, index)->getInterfaceInfo().kind;
}
HOST const char* host_creator_name(void* library, int32_t index) {
  return creator(library, index)->getPluginName();
}
HOST const char* host_creator_version(void* library, int32_t index) {
  return creator(library, index)->getPluginVersion();
}
HOST const char* host_creator_namespace(void* library, int32_t index) {
  return creator(library, index)->getPluginNamespace();
}
HOST const PluginFieldCollection* host_creator_fields(void* library, int32_t index) {
  return creator(library, index)->getFieldNames();
}

HOST IPluginV3* host_create(void* library, int32_t index, const PluginFieldCollection* fields,
                            int32_t phase) {
  IPluginCreatorV3One* made_by = creator(library, index);
  return made_by->createPlugin(made_by->getPluginName(), fields, static_cast<TensorRTPhase>(phase));
}
HOST IPluginV3* host_clone(IPluginV3* plugin) { return plugin->clone(); }
HOST void host_destroy(IPluginV3* plugin) { delete plugin; }

HOST const char* host_name(IPluginV3* plugin) { return core(plugin)->getPluginName(); }
HOST const char* host_version(IPluginV3* plugin) { return core(plugin)->getPluginVersion(); }
HOST const char* host_namespace(IPluginV3* plugin) { return core(plugin)->getPluginNamespace(); }
HOST const char* host_metadata(IPluginV3* plugin) { return build(plugin)->getMetadataString(); }

HOST int32_t host_outputs(IPluginV3* plugin) { return build(plugin)->getNbOutputs(); }
// Of IPluginV3OneBuild: aliases are asked of the second version alone.
HOST int32_t host_build_version(IPluginV3* plugin) {
  return build(plugin)->getInterfaceInfo().major;
}
HOST int32_t host_aliased_input(IPluginV3* plugin, int32_t output) {
  return build(plugin)->getAliasedInput(output);
}
HOST int32_t host_output_types(IPluginV3* plugin, DataType* outputs, int32_t output_count,
                               const DataType* inputs, int32_t input_count) {
  return build(plugin)->getOutputDataTypes(outputs, output_count, inputs, input_count);
}
HOST int32_t host_output_shapes(IPluginV3* plugin, Dims* outputs, int32_t output_count,
                                const Dims* inputs, int32_t input_count) {
  std::deque<Size> sizes;
  std::vector<DimsExprs> given(input_count), made(output_count);
  for (int32_t i = 0; i < input_count; ++i) {
    given[i].nbDims = inputs[i].nbDims;
    for (int32_t axis = 0; axis < inputs[i].nbDims; ++axis)
      given[i].d[axis] = &sizes.emplace_back(inputs[i].d[axis]);
  }
  NoBuilder builder;
  const int32_t status = build(plugin)->getOutputShapes(given.data(), input_count, nullptr, 0,
                                                        made.data(), output_count, builder);
  for (int32_t i = 0; status == 0 && i < output_count; ++i) {
    outputs[i].nbDims = made[i].nbDims;
    for (int32_t axis = 0; axis < made[i].nbDims; ++axis)
      outputs[i].d[axis] = made[i].d[axis]->getConstantValue();
  }
  return status;
}
HOST bool host_supports(IPluginV3* plugin, int32_t index, const DynamicPluginTensorDesc* tensors,
                        int32_t inputs, int32_t outputs) {
  return build(plugin)->supportsFormatCombination(index, tensors, inputs, outputs);
}
HOST int32_t host_configure(IPluginV3* plugin, const DynamicPluginTensorDesc* inputs,
                            int32_t input_count, const DynamicPluginTensorDesc* outputs,
                            int32_t output_count) {
  return build(plugin)->configurePlugin(inputs, input_count, outputs, output_count);
}

HOST size_t host_workspace(IPluginV3* plugin, const DynamicPluginTensorDesc* inputs,
                           int32_t input_count, const DynamicPluginTensorDesc* outputs,
                           int32_t output_count) {
  return build(plugin)->getWorkspaceSize(inputs, input_count, outputs, output_count);
}

HOST const PluginFieldCollection* host_serialize(IPluginV3* plugin) {
  return runtime(plugin)->getFieldsToSerialize();
}
HOST IPluginV3* host_attach(IPluginV3* plugin) { return runtime(plugin)->attachToContext(nullptr); }
HOST int32_t host_on_shape_change(IPluginV3* plugin, const PluginTensorDesc* inputs,
                                  int32_t input_count, const PluginTensorDesc* outputs,
                                  int32_t output_count) {
  return runtime(plugin)->onShapeChange(inputs, input_count, outputs, output_count);
}
HOST int32_t host_enqueue(IPluginV3* plugin, const PluginTensorDesc* input_descriptions,
                          const PluginTensorDesc* output_descriptions, const void* const* inputs,
                          void* const* outputs, void* workspace, void* stream) {
  return runtime(plugin)->enqueue(input_descriptions, output_descriptions, inputs, outputs,
                                  workspace, static_cast<cudaStream_t>(stream));
}
