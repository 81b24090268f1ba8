#pragma once

#include "cuda_runtime_api.h"
#include "e4m3.h"

struct __nv_fp8_e4m3 {
  uint8_t number;
};
using __nv_fp8x2_storage_t = uint16_t;
enum { __NV_SATFINITE, __NV_E4M3 };
inline __nv_fp8x2_storage_t __nv_cvt_float2_to_fp8x2(float2 x, int, int) {
  return e4m3::two_from_floats(x.x, x.y);
}
