// What an operator is given, and the checks that all bindings share. No CUDA and no framework.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <vector>

namespace vidc {

enum class DType { float32, float16, bfloat16, float8_e4m3fn, int8, int64, other };

constexpr int64_t kWidest = 8192;  // channels of a token, where an operator has all at once

// An operator refuses its arguments or cannot run: the text of vidc.plugins.errors.VidcError.
class Error : public std::runtime_error {
 public:
  Error(const std::string& code, const std::string& message, const std::string& hint);
};

// A tensor of whoever calls; sizes and strides, in elements, stay the caller's.
struct TensorView {
  const char* name;
  void* data;
  DType dtype;
  int rank;
  const int64_t* sizes;
  const int64_t* strides;
  int device;         // index of the CUDA device, negative if it is elsewhere
  std::string where;  // the device as the caller's framework writes it

  int64_t size(int dimension) const { return sizes[dimension < 0 ? rank + dimension : dimension]; }
  int64_t stride(int dimension) const {
    return strides[dimension < 0 ? rank + dimension : dimension];
  }
};

// A size that a shape must have, or the letter that stands for any.
struct Dimension {
  int64_t size;
  const char* letter;

  Dimension(int64_t exact) : size(exact), letter(nullptr) {}
  Dimension(const char* any) : size(-1), letter(any) {}
};

// Refuses, by code VIDC-KERNEL-ARGUMENT, what an operator's kernels cannot take. Of the same words
// as vidc.plugins.arguments, which refuses it where there is no kernel yet.
class Checks {
 public:
  explicit Checks(const char* operator_name) : operator_(operator_name) {}

  void shape(const TensorView& tensor, std::initializer_list<Dimension> expected) const;
  void dtype(const TensorView& tensor, const std::vector<DType>& allowed) const;
  void like(const TensorView& tensor, const TensorView& other) const;
  void output_dtype(DType dtype) const;
  // The dtype of an output, and the scale [1] that FP8 has and others have not; null if not given.
  void output(DType dtype, const TensorView* scale) const;
  // One contiguous piece of memory that starts at a multiple of 16 bytes.
  void contiguous(const TensorView& tensor) const;
  // All on the first one's CUDA device.
  void device(std::initializer_list<const TensorView*> tensors) const;
  void that(bool holds, const char* argument, const std::string& expected,
            const std::string& found) const;

  // Kernels of rows have one thread for each 8 channels.
  void width(const TensorView& tensor, int64_t width) const;

  const char* name() const { return operator_; }

 private:
  void aligned(const TensorView& tensor) const;
  [[noreturn]] void refuse(const char* argument, const std::string& expected,
                           const std::string& found) const;

  const char* operator_;
};

std::string text(const TensorView& tensor);  // its shape
std::string text(DType dtype);
DType dtype_named(const std::string& name);  // other for what is no name

}  // namespace vidc
