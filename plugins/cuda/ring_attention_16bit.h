/* Softmax attention over a ring of 16-bit keys and values, head sizes 64 and 128.
 *
 *   output[t] = sum over j < valid_length of softmax(dot(query[t], key[j]) / sqrt(D)) * value[j]
 *
 * for each head. Slots from valid_length on do not affect the output and may have any content. Sums
 * are in float32; softmax weights are rounded to the type of the values.
 *
 * Layouts, all contiguous and aligned to 16 bytes, of one type:
 *
 *   query, output         [B, T, H, D]
 *   key, value            [B, S, H, D]
 *   valid_length  int64   [1]           clamped to [1, S]; read by the kernel
 */

#pragma once

#include <cuda_runtime_api.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum VidcFloat16Bit { VIDC_FLOAT_BF16 = 0, VIDC_FLOAT_FP16 = 1 };

struct VidcRingAttention16Bit {
  const void* query;
  const void* key;
  const void* value;
  const int64_t* valid_length;
  void* output;
  int32_t batch;
  int32_t queries;
  int32_t slots;
  int32_t heads;
  int32_t head_dim;
  int32_t type;
};

/* Enqueues the kernel for sm_75 and newer; may be captured in a CUDA graph. Returns
 * cudaErrorInvalidValue for unsupported sizes. */
cudaError_t vidc_ring_attention_16bit(const struct VidcRingAttention16Bit* arguments,
                                      cudaStream_t stream);

#ifdef __cplusplus
}
#endif
