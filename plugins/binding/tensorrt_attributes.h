// Attributes of a plugin: read from TensorRT's fields and written back to them.
#pragma once

#include <NvInferRuntime.h>

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

namespace vidc {

// An integer, a real number, a flag or a text.
using Value = std::variant<int64_t, float, int32_t, std::string>;

// A named value; before it is read, the value only gives the type.
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
  // Throws Error: VIDC-KERNEL-ARGUMENT if an attribute is missing, unknown or of another type;
  // VIDC-KERNEL-ABI if serialized fields have another ABI or none.
  Attributes(const char* operator_name, const std::vector<Attribute>& wanted,
             const nvinfer1::PluginFieldCollection& given, nvinfer1::TensorRTPhase phase);

  template <typename T>
  const T& get(const char* name) const {
    return std::get<T>(find(name));
  }

  // Returns all attributes and the ABI; they point into this object.
  std::vector<nvinfer1::PluginField> fields() const;
  // Returns `name=value`, separated by commas.
  std::string description() const;

 private:
  const Value& find(const std::string& name) const;

  std::vector<Attribute> values_;
};

}  // namespace vidc
