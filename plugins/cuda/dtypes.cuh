// Dispatch from a run-time dtype to a kernel's template argument.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>

#include "arguments.h"

namespace vidc {

template <typename T>
struct Type {
  using type = T;
};

// Calls `body` with the Type of a dtype, which must be one of the supported ones.
template <typename Body>
void with_float(DType dtype, Body&& body) {
  switch (dtype) {
    case DType::bfloat16: return body(Type<__nv_bfloat16>{});
    case DType::float16: return body(Type<__half>{});
    default: return body(Type<float>{});
  }
}

template <typename Body>
void with_half(DType dtype, Body&& body) {
  if (dtype == DType::bfloat16) return body(Type<__nv_bfloat16>{});
  return body(Type<__half>{});
}

template <typename Body>
void with_eight_bits(DType dtype, Body&& body) {
  if (dtype == DType::int8) return body(Type<int8_t>{});
  return body(Type<__nv_fp8_e4m3>{});
}

template <typename Body>
void with_float_or_fp8(DType dtype, Body&& body) {
  if (dtype == DType::float8_e4m3fn) return body(Type<__nv_fp8_e4m3>{});
  return with_float(dtype, body);
}

}  // namespace vidc
