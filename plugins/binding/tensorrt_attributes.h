// What a plugin is made with besides tensors: from TensorRT's fields, and back to them.
#pragma once

#include <NvInferRuntime.h>

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

namespace vidc {

// A sink, a number, whether something holds, a dtype's name.
using Value = std::variant<int64_t, float, int32_t, std::string>;

// A name, and a value of the type that it has.
struct Attribute {
  const char* name;
  Value value;
};

inline Attribute integer(const char* name) { return {name, int64_t{}}; }
inline Attribute real(const char* name) { return {name, float{}}; }
inline Attribute flag(const char* name) { return {name, int32_t{}}; }
inline Attribute text(const char* name) { return {name, std::string{}}; }

nvinfer1::PluginFieldType field_type(const Value& value);

class Attributes {
 public:
  // Throws Error: VIDC-KERNEL-ARGUMENT unless there is each of the wanted ones, of its type, and no
  // other; VIDC-KERNEL-ABI where what was serialized is of another ABI, or does not say of which.
  Attributes(const char* operator_name, const std::vector<Attribute>& wanted,
             const nvinfer1::PluginFieldCollection& given, nvinfer1::TensorRTPhase phase);

  template <typename T>
  const T& get(const char* name) const {
    return std::get<T>(find(name));
  }

  // All of them and the ABI; they point into this object.
  std::vector<nvinfer1::PluginField> fields() const;
  // `name=value`, separated by commas.
  std::string description() const;

 private:
  const Value& find(const std::string& name) const;

  std::vector<Attribute> values_;
};

}  // namespace vidc
