// Stores of the attention output, two neighboring channels at a time.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "ring_attention.h"

namespace vidc::ring_attention {

// `factor` is the inverse scale of an E4M3 output; other types ignore it.
__device__ __forceinline__ void store(void* output, int type, int64_t element, float factor,
                                      float x, float y) {
  if (type == VIDC_BF16) {
    static_cast<__nv_bfloat162*>(output)[element / 2] = __floats2bfloat162_rn(x, y);
  } else if (type == VIDC_FP16) {
    static_cast<__half2*>(output)[element / 2] = __floats2half2_rn(x, y);
  } else {
    static_cast<__nv_fp8x2_storage_t*>(output)[element / 2] = __nv_cvt_float2_to_fp8x2(
        make_float2(x * factor, y * factor), __NV_SATFINITE, __NV_E4M3);
  }
}

}  // namespace vidc::ring_attention
