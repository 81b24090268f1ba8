// The entry points that TensorRT calls when it loads the library of plugins.

#include <NvInferRuntime.h>

#include <memory>

#include "tensorrt_plugin.h"
#include "tensorrt_report.h"

namespace vidc {
namespace {

class Creator final : public nvinfer1::IPluginCreatorV3One {
 public:
  explicit Creator(const Operator& op) : operator_(op) {
    for (const Attribute& attribute : op.attributes)
      fields_.emplace_back(attribute.name, nullptr, field_type(attribute.value), 1);
    collection_ = {static_cast<int32_t>(fields_.size()), fields_.data()};
  }

  nvinfer1::IPluginV3* createPlugin(const char*, const nvinfer1::PluginFieldCollection* given,
                                    nvinfer1::TensorRTPhase phase) noexcept override {
    nvinfer1::IPluginV3* made = nullptr;
    reported([&] {
      const nvinfer1::PluginFieldCollection none{};
      made = new Plugin(operator_, Attributes(operator_.name, operator_.attributes,
                                              given ? *given : none, phase));
    });
    return made;
  }

  const nvinfer1::PluginFieldCollection* getFieldNames() noexcept override { return &collection_; }
  const char* getPluginName() const noexcept override { return operator_.name; }
  const char* getPluginVersion() const noexcept override { return kVersion; }
  const char* getPluginNamespace() const noexcept override { return kNamespace; }

 private:
  const Operator& operator_;
  std::vector<nvinfer1::PluginField> fields_;
  nvinfer1::PluginFieldCollection collection_;
};

std::vector<nvinfer1::IPluginCreatorInterface*> make_creators() {
  static std::vector<std::unique_ptr<Creator>> owned;
  std::vector<nvinfer1::IPluginCreatorInterface*> creators;
  for (const Operator& op : operators()) {
    owned.push_back(std::make_unique<Creator>(op));
    creators.push_back(owned.back().get());
  }
  return creators;
}

}  // namespace
}  // namespace vidc

extern "C" __attribute__((visibility("default"))) nvinfer1::IPluginCreatorInterface* const*
getCreators(int32_t& count) {
  static const std::vector<nvinfer1::IPluginCreatorInterface*> creators = vidc::make_creators();
  count = static_cast<int32_t>(creators.size());
  return creators.data();
}

// TensorRT requires this function; tensorrt_report.h says why it does nothing.
extern "C" __attribute__((visibility("default"))) void setLoggerFinder(nvinfer1::ILoggerFinder*) {}
