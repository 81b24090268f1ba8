// Arguments of operators, and the checks that all bindings share. Needs no CUDA and no framework.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <vector>

namespace vidc {

enum class DType { float32, float16, bfloat16, float8_e4m3fn, int8, int64, other };

constexpr int64_t kWidest = 8192;  // largest row of an operator with one block per token

// Refused arguments or a failed launch; what() is formatted as vidc.plugins.errors.VidcError.
class Error : public std::runtime_error {
 public:
  Error(const std::string& code, const std::string& message, const std::string& hint);
};

// View of the caller's tensor; sizes and strides are in elements and belong to the caller.
struct TensorView {
  const char* name;
  void* data;
  DType dtype;
  int rank;
  const int64_t* sizes;
  const int64_t* strides;
  int device;         // index of the CUDA device, negative for other devices
  std::string where;  // name of the device in the caller's framework

  int64_t size(int dimension) const { return sizes[dimension < 0 ? rank + dimension : dimension]; }
  int64_t stride(int dimension) const {
    return strides[dimension < 0 ? rank + dimension : dimension];
  }
};

// A required size, or a letter for any size.
struct Dimension {
  int64_t size;
  const char* letter;

  Dimension(int64_t exact) : size(exact), letter(nullptr) {}
  Dimension(const char* any) : size(-1), letter(any) {}
};

// Refuses arguments that an operator's kernels cannot take, with code VIDC-KERNEL-ARGUMENT.
// Messages are those of vidc.plugins.arguments, which runs the same checks on references.
class Checks {
 public:
  explicit Checks(const char* operator_name) : operator_(operator_name) {}

  void shape(const TensorView& tensor, std::initializer_list<Dimension> expected) const;
  void dtype(const TensorView& tensor, const std::vector<DType>& allowed) const;
  void like(const TensorView& tensor, const TensorView& other) const;
  void output_dtype(DType dtype) const;
  // Checks the dtype of an output and its scale [1], which FP8 must have and others must not.
  void output(DType dtype, const TensorView* scale) const;
  // Checks for contiguous memory, aligned to 16 bytes.
  void contiguous(const TensorView& tensor) const;
  // Checks that all are on the first tensor's CUDA device.
  void device(std::initializer_list<const TensorView*> tensors) const;
  void that(bool holds, const char* argument, const std::string& expected,
            const std::string& found) const;

  // Checks the width of a row: kernels have one thread per 8 channels.
  void width(const TensorView& tensor, int64_t width) const;

  const char* name() const { return operator_; }

 private:
  void aligned(const TensorView& tensor) const;
  [[noreturn]] void refuse(const char* argument, const std::string& expected,
                           const std::string& found) const;

  const char* operator_;
};

std::string text(const TensorView& tensor);  // the tensor's shape
std::string text(DType dtype);
DType dtype_named(const std::string& name);  // DType::other for an unknown name

}  // namespace vidc
