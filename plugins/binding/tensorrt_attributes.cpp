#include "tensorrt_attributes.h"

#include <cstring>
#include <sstream>

#include "../cuda/arguments.h"

namespace vidc {
namespace {

using nvinfer1::PluginField;
using nvinfer1::PluginFieldType;

constexpr char kAbiName[] = "vidc_plugin_abi";
constexpr int32_t kAbi = VIDC_PLUGIN_ABI;

const char* name_of(PluginFieldType type) {
  switch (type) {
    case PluginFieldType::kINT64: return "int64";
    case PluginFieldType::kINT32: return "int32";
    case PluginFieldType::kFLOAT32: return "float32";
    case PluginFieldType::kCHAR: return "text";
    default: return "another type";
  }
}

const PluginField* find_field(const nvinfer1::PluginFieldCollection& given,
                              const std::string& name) {
  for (int32_t i = 0; i < given.nbFields; ++i)
    if (given.fields[i].name && given.fields[i].name == name) return &given.fields[i];
  return nullptr;
}

bool is_integer(PluginFieldType type) {
  return type == PluginFieldType::kINT32 || type == PluginFieldType::kINT64;
}

// Reads an integer of either width into `value`: parsers pass ONNX's integers as int32 or int64.
template <typename T>
void read_integer(const Checks& checks, const PluginField& field, T& value) {
  int64_t wide = 0;
  if (field.type == PluginFieldType::kINT64) {
    std::memcpy(&wide, field.data, sizeof(wide));
  } else {
    int32_t narrow = 0;
    std::memcpy(&narrow, field.data, sizeof(narrow));
    wide = narrow;
  }
  value = static_cast<T>(wide);
  checks.that(value == wide, field.name, "a number of 32 bits", std::to_string(wide));
}

// Reads one value of the type of `value`; text has any length and may end with a null.
void read(const Checks& checks, const PluginField* field, const char* name, Value& value) {
  const PluginFieldType type = field_type(value);
  const bool one = type != PluginFieldType::kCHAR;
  const std::string expected = std::string("an attribute of type ") + name_of(type);
  checks.that(field && field->data, name, expected, "none");
  const bool readable = is_integer(type) ? is_integer(field->type) : field->type == type;
  checks.that(readable, name, expected, name_of(field->type));
  checks.that(one ? field->length == 1 : field->length >= 0, name, expected + " and length 1",
              "length " + std::to_string(field->length));
  std::visit(
      [&](auto& to) {
        using T = std::decay_t<decltype(to)>;
        if constexpr (std::is_same_v<T, std::string>) {
          const char* text = static_cast<const char*>(field->data);
          to.assign(text, strnlen(text, static_cast<size_t>(field->length)));
        } else if constexpr (std::is_integral_v<T>) {
          read_integer(checks, *field, to);
        } else {
          std::memcpy(&to, field->data, sizeof(T));
        }
      },
      value);
}

void check_abi(const char* operator_name, const PluginField* field) {
  int32_t found = 0;
  const bool readable =
      field && field->data && field->type == PluginFieldType::kINT32 && field->length == 1;
  if (readable) std::memcpy(&found, field->data, sizeof(found));
  if (readable && found == kAbi) return;
  throw Error("VIDC-KERNEL-ABI",
              std::string("vidc::") + operator_name + ": " + kAbiName + ": expected " +
                  std::to_string(kAbi) + ", found " + (readable ? std::to_string(found) : "none"),
              "build the engine again with this vidc, or run it with the one that built it");
}

}  // namespace

PluginFieldType field_type(const Value& value) {
  constexpr PluginFieldType types[] = {PluginFieldType::kINT64, PluginFieldType::kFLOAT32,
                                       PluginFieldType::kINT32, PluginFieldType::kCHAR};
  return types[value.index()];
}

Attributes::Attributes(const char* operator_name, const std::vector<Attribute>& wanted,
                       const nvinfer1::PluginFieldCollection& given, nvinfer1::TensorRTPhase phase)
    : values_(wanted) {
  const PluginField* abi = find_field(given, kAbiName);
  if (abi || phase == nvinfer1::TensorRTPhase::kRUNTIME) check_abi(operator_name, abi);
  const Checks checks(operator_name);
  for (Attribute& attribute : values_)
    read(checks, find_field(given, attribute.name), attribute.name, attribute.value);
  for (int32_t i = 0; i < given.nbFields; ++i) {
    const std::string name = given.fields[i].name ? given.fields[i].name : "";
    bool known = name == kAbiName;
    for (const Attribute& attribute : wanted) known = known || name == attribute.name;
    checks.that(known, name.c_str(), "no attribute of this name", "one");
  }
}

const Value& Attributes::find(const std::string& name) const {
  for (const Attribute& attribute : values_)
    if (attribute.name == name) return attribute.value;
  throw std::logic_error("no operator has an attribute " + name);
}

std::vector<PluginField> Attributes::fields() const {
  std::vector<PluginField> fields{{kAbiName, &kAbi, PluginFieldType::kINT32, 1}};
  for (const Attribute& attribute : values_) {
    const PluginFieldType type = field_type(attribute.value);
    if (const auto* text = std::get_if<std::string>(&attribute.value))
      fields.emplace_back(attribute.name, text->c_str(), type,
                          static_cast<int32_t>(text->size() + 1));
    else
      std::visit([&](const auto& value) { fields.emplace_back(attribute.name, &value, type, 1); },
                 attribute.value);
  }
  return fields;
}

std::string Attributes::description() const {
  std::ostringstream out;
  out.precision(9);  // Enough digits to distinguish any two float32 values.
  const char* separator = "";
  for (const Attribute& attribute : values_) {
    out << separator << attribute.name << "=";
    std::visit([&](const auto& value) { out << value; }, attribute.value);
    separator = ",";
  }
  return out.str();
}

}  // namespace vidc
