#include "arguments.h"

#include <sstream>

namespace vidc {
namespace {

constexpr int64_t kAlignment = 16;
constexpr int64_t kVector = 8;

std::string hexadecimal(const void* address) {
  std::ostringstream out;
  out << "0x" << std::hex << reinterpret_cast<uintptr_t>(address);
  return out.str();
}

std::string list(int count, const int64_t* values) {
  std::string out = "[";
  for (int i = 0; i < count; ++i) out += (i ? ", " : "") + std::to_string(values[i]);
  return out + "]";
}

}  // namespace

Error::Error(const std::string& code, const std::string& message, const std::string& hint)
    : std::runtime_error("[" + code + "] " + message + "\n  try: " + hint) {}

std::string text(const TensorView& tensor) { return list(tensor.rank, tensor.sizes); }

std::string text(DType dtype) {
  switch (dtype) {
    case DType::float32: return "float32";
    case DType::float16: return "float16";
    case DType::bfloat16: return "bfloat16";
    case DType::float8_e4m3fn: return "float8_e4m3fn";
    case DType::int8: return "int8";
    case DType::int64: return "int64";
    default: return "another dtype";
  }
}

DType dtype_named(const std::string& name) {
  for (DType dtype : {DType::float32, DType::float16, DType::bfloat16, DType::float8_e4m3fn,
                      DType::int8, DType::int64})
    if (text(dtype) == name) return dtype;
  return DType::other;
}

void Checks::refuse(const char* argument, const std::string& expected,
                    const std::string& found) const {
  throw Error("VIDC-KERNEL-ARGUMENT",
              std::string("vidc::") + operator_ + ": " + argument + ": expected " + expected +
                  ", found " + found,
              "pass arguments as the operator's reference in vidc.plugins.ops documents them");
}

void Checks::that(bool holds, const char* argument, const std::string& expected,
                  const std::string& found) const {
  if (!holds) refuse(argument, expected, found);
}

void Checks::shape(const TensorView& tensor, std::initializer_list<Dimension> expected) const {
  bool fits = tensor.rank == static_cast<int>(expected.size());
  std::string wanted = "[";
  int index = 0;
  for (const Dimension& dimension : expected) {
    wanted += index ? ", " : "";
    wanted += dimension.letter ? dimension.letter : std::to_string(dimension.size);
    fits = fits && (dimension.letter || tensor.sizes[index] == dimension.size);
    fits = fits && tensor.sizes[index] > 0;
    ++index;
  }
  if (!fits) refuse(tensor.name, "shape " + wanted + "]", text(tensor));
}

void Checks::like(const TensorView& tensor, const TensorView& other) const {
  bool fits = tensor.rank == other.rank;
  for (int i = 0; fits && i < tensor.rank; ++i) fits = tensor.sizes[i] == other.sizes[i];
  that(fits, tensor.name, "shape " + text(other), text(tensor));
}

void Checks::output_dtype(DType dtype) const {
  that(dtype == DType::float8_e4m3fn || dtype == DType::float32 || dtype == DType::bfloat16 ||
           dtype == DType::float16,
       "dtype", "float32 or bfloat16 or float16 or float8_e4m3fn", text(dtype));
}

void Checks::output(DType dtype, const TensorView* scale) const {
  output_dtype(dtype);
  const bool quantized = dtype == DType::float8_e4m3fn;
  that(quantized == (scale != nullptr), "output_scale",
       (quantized ? "a tensor for " : "none for ") + text(dtype), scale ? "a tensor" : "none");
  if (!scale) return;
  shape(*scale, {1});
  this->dtype(*scale, {DType::float32});
}

void Checks::dtype(const TensorView& tensor, const std::vector<DType>& allowed) const {
  std::string wanted;
  for (DType dtype : allowed) {
    if (tensor.dtype == dtype) return;
    wanted += (wanted.empty() ? "" : " or ") + text(dtype);
  }
  refuse(tensor.name, wanted, text(tensor.dtype));
}

void Checks::aligned(const TensorView& tensor) const {
  that(reinterpret_cast<uintptr_t>(tensor.data) % kAlignment == 0, tensor.name,
       "memory aligned to 16 bytes", hexadecimal(tensor.data));
}

void Checks::contiguous(const TensorView& tensor) const {
  int64_t stride = 1;
  bool fits = true;
  for (int i = tensor.rank - 1; i >= 0; --i) {
    fits = fits && (tensor.sizes[i] == 1 || tensor.strides[i] == stride);
    stride *= tensor.sizes[i];
  }
  that(fits, tensor.name, "a contiguous tensor", "strides " + list(tensor.rank, tensor.strides));
  aligned(tensor);
}

void Checks::device(std::initializer_list<const TensorView*> tensors) const {
  const TensorView& first = **tensors.begin();
  that(first.device >= 0, first.name, "a CUDA device", first.where);
  for (const TensorView* tensor : tensors)
    that(tensor->device == first.device, tensor->name, first.name + ("'s device " + first.where),
         tensor->where);
}

void Checks::width(const TensorView& tensor, int64_t width) const {
  that(width % kVector == 0 && width <= kWidest, tensor.name,
       "a width that is a multiple of 8, at most 8192", std::to_string(width));
}

}  // namespace vidc
